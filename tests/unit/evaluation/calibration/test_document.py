"""Predictions of critics in a backtest against outcomes, from definitions in plain loops."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from backtest_lab import agent_for, panel, plain, rules, simulated
from oracles import predictions as oracle
from stormsail.core.errors import ConfigError, RangeError, ShapeError
from stormsail.core.files import documents
from stormsail.evaluation.calibration.document import calibration_of
from stormsail.evaluation.calibration.judged_tail import judged_horizon, judged_tail
from stormsail.evaluation.calibration.predictions import (
    ATOM_LEVELS,
    atom_quantiles,
    closes_of,
    horizon_of,
    predictions_of,
    regimes_of,
    rewards_of,
    window_starts,
)
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.engine.result import Backtest
from stormsail.evaluation.engine.run import backtest, replay
from stormsail.evaluation.stats.bootstrap import block_mean_interval
from stormsail.market import MarketConfig
from stormsail.market.interval import Interval
from stormsail.modules import CriticConfig

HOUR = 3_600_000


def calibration_document(backtests, **options):
    return calibration_of(backtests, **options).document()


FLOOR = 0.05 * 10_000.0


def stream(seed):
    return np.random.Generator(np.random.PCG64(seed))


def midpoints(n):
    return (np.arange(n) + 0.5) / n


def passed(
    rewards,
    distribution,
    *,
    gamma: float | None = 0.5,
    kind="quantile",
    support=None,
    stopped=None,
    first=1_000,
    value=None,
    **market,
):
    """Return a backtest with these log rewards [N, S] and predicted distributions [N, S, W]."""
    rewards, distribution = np.asarray(rewards, dtype=float), np.asarray(distribution, dtype=float)
    count, symbols = rewards.shape
    growth = np.concatenate((np.zeros((1, symbols)), np.cumsum(rewards, axis=0)))
    sleeves = 10_000.0 * np.exp(growth)
    if kind == "quantile" and support is None:
        support = midpoints(distribution.shape[-1])
    nothing = np.zeros((count, symbols), dtype=bool)
    return Backtest(
        symbols=tuple(f"S{column}" for column in range(symbols)),
        interval=Interval.parse("1h"),
        market=MarketConfig.from_mapping(market),
        config=BacktestConfig(),
        ts=(first + np.arange(count + 1, dtype=np.int64)) * HOUR,
        equity=sleeves.sum(1),
        sleeves=sleeves,
        trades=(),
        bars={"transfer": np.zeros((count, symbols))},
        flags={"stopped": nothing if stopped is None else stopped},
        reasons=np.zeros((count, symbols), dtype=np.int64),
        value=distribution.mean(-1) if value is None else value,
        distribution=distribution,
        distribution_kind=kind,
        distribution_support=support,
        notes={} if gamma is None else {"gamma": gamma},
    )


def exact(count, *, n=40, gamma=0.5, seed=0, symbols=1, scale=0.01):
    """Return independent normal bars and the exact distribution of their endless discounted sum.

    Bars have variance s², so the sum has s² / (1 - g²).
    """
    rewards = scale * stream(seed).standard_normal((count, symbols))
    sigma = scale / math.sqrt(1.0 - gamma**2)
    distribution = np.broadcast_to(sigma * stats.norm.ppf(midpoints(n)), (count, symbols, n))
    return rewards, distribution.copy()


# ------------------------------------------------------------------ what is held against it


def test_the_horizon_leaves_a_tenth_of_the_weight():
    # 0.99^229 = 0.1001, 0.99^230 = 0.0991; 0.5^3 = 0.125, 0.5^4 = 0.0625.
    assert [horizon_of(g) for g in (0.0, 0.1, 0.5, 0.9, 0.99, 0.999)] == [1, 1, 4, 22, 230, 2_302]
    for discount in (0.01, 0.1, 0.2, 0.1**0.5, 0.1 ** (1 / 7), 0.7, 0.95, 0.97, 0.995):
        assert horizon_of(discount) == oracle.horizon(discount, 0.1)


@pytest.mark.refusal
def test_a_discount_out_of_range_is_refused():
    for gamma in (-0.1, 1.0, 1.5, math.nan):
        with pytest.raises(RangeError) as caught:
            horizon_of(gamma)
        assert str(caught.value) == (
            f"`gamma` must be at least 0 and below 1; found {gamma!r}. Pass the discount that the "
            "critic was trained with. [out-of-range]"
        )


def test_windows_begin_eight_times_a_horizon_and_end_in_time():
    assert window_starts(20, 16).tolist() == [0, 2, 4]
    assert window_starts(26, 10).tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13, 15, 16]
    assert window_starts(6, 4).tolist() == [0, 1, 2]
    assert window_starts(4, 4).tolist() == [0]
    assert window_starts(3, 4).tolist() == []


def test_what_came_by_hand():
    # Discount 1/2, so 4 bars: 8 + 4/2 + 2/4 + 1/8 = 10.625 and, a bar later, 4 + 1 + 1/4 - 8/8.
    rewards = np.array([8.0, 4.0, 2.0, 1.0, -8.0])[:, None] / 1000
    distribution = np.arange(10.0).reshape(5, 1, 2)
    outcome = predictions_of([passed(rewards, distribution)], gamma=0.5)
    assert outcome.windows.realised == pytest.approx([0.010625, 0.00425], abs=1e-15)
    assert outcome.windows.starts.tolist() == [1_000, 1_001]
    assert outcome.windows.quantiles.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert outcome.mean.tolist() == [0.5, 2.5]
    assert (outcome.windows.horizon, outcome.windows.independent, outcome.bars) == (4, 1, 5)


def test_windows_hold_what_the_loops_hold():
    draws = stream(5)
    rewards = 0.4 * draws.standard_normal((60, 2))
    stopped = np.zeros((60, 2), dtype=bool)
    stopped[37:, 1] = True
    made = passed(
        rewards,
        draws.standard_normal((60, 2, 3)),
        stopped=stopped,
        ruin_penalty=0.3,
        reward_clip=0.9,
    )
    assert (made.sleeves <= FLOOR).any()  # so that floor and penalty play their part
    assert (np.abs(rewards) > 0.9).any()
    outcome = predictions_of([made], gamma=0.8).windows
    bars = oracle.horizon(0.8, 0.1)
    wanted = [
        (
            1_000 + first,
            sorted(made.distribution[first, column].tolist()),
            oracle.realised(
                made.sleeves[:, column].tolist(), stopped[:, column], first, bars, 0.8,
                floor=FLOOR, penalty=0.3, clip=0.9,
            ),
        )
        for first in window_starts(60, bars).tolist()
        for column in (0, 1)
        if not stopped[first, column]
    ]  # fmt: skip
    assert bars == 11
    assert outcome.starts.tolist() == [one[0] for one in wanted]
    assert outcome.quantiles.tolist() == [one[1] for one in wanted]
    assert outcome.realised == pytest.approx([one[2] for one in wanted], abs=1e-13)


@pytest.mark.parametrize("changes", [{}, {"reward_clip": 0.004}, {"stops__drawdown": 0.05}])
def test_rewards_are_those_of_the_simulator(changes):
    bars = panel(120)
    outcome = backtest(agent_for(bars, rules(**changes)), bars, plain())
    steps = [step.info.reward_used_fraction.numpy() for step in simulated(outcome, bars)]
    written = np.where(outcome.flags["stopped"], 0.0, np.stack(steps))
    assert rewards_of(outcome) == pytest.approx(written, abs=1e-14)
    assert np.count_nonzero(rewards_of(outcome)) > 100
    assert outcome.flags["stopped"].any() == ("stops__drawdown" in changes)


def test_symbols_and_seeds_add_windows_but_no_independent_ones():
    rewards, distribution = exact(41, symbols=3)
    one = passed(rewards[:, :1], distribution[:, :1])
    three = passed(rewards, distribution)
    alone = predictions_of([one], gamma=0.5).windows
    together = predictions_of([three, one], gamma=0.5).windows
    assert (alone.count, alone.independent) == (38, 10)
    assert (together.count, together.independent) == (4 * 38, 10)


def test_a_window_lies_in_one_fold():
    rewards, distribution = exact(22)
    folds = [
        passed(rewards[:11], distribution[:11]),
        passed(rewards[11:], distribution[11:], first=1_011),
    ]
    outcome = predictions_of(folds, gamma=0.5)
    assert outcome.windows.starts.tolist() == [*range(1_000, 1_008), *range(1_011, 1_019)]
    assert outcome.windows.independent == 4  # two in each; one of 22 bars has five
    assert outcome.bars == 22
    assert predictions_of([passed(rewards, distribution)], gamma=0.5).windows.independent == 5


def test_a_prediction_that_is_no_number_is_left_out():
    rewards, distribution = exact(12)
    distribution[3, 0, 7] = math.nan
    outcome = predictions_of([passed(rewards, distribution)], gamma=0.5).windows
    assert outcome.starts.tolist() == [1_000, 1_001, 1_002, *range(1_004, 1_009)]


# ------------------------------------------------------------------ distributions on atoms


def test_quantiles_of_atoms_by_hand():
    # Cells [-1, 1], [1, 3], [3, 5] with 1/4, 1/2, 1/4: level 1/8 lies half-way in the first.
    outcome = atom_quantiles(
        np.array([[0.25, 0.5, 0.25]]), np.array([0.0, 2.0, 4.0]), np.array([0.125, 0.5, 0.75, 0.9])
    )
    assert outcome[0] == pytest.approx([0.0, 2.0, 3.0, 4.2], abs=1e-14)


def test_quantiles_of_atoms_as_in_loops():
    draws = stream(2)
    probs = draws.random((20, 7)) * (draws.random((20, 7)) < 0.6)
    probs[:, 3] += 0.1
    atoms = np.sort(draws.standard_normal(7))
    levels = midpoints(13)
    outcome = atom_quantiles(probs, atoms, levels)
    wanted = [[oracle.spread_quantile(row, atoms.tolist(), x) for x in levels] for row in probs]
    assert outcome == pytest.approx(np.array(wanted), abs=1e-12)


def test_an_exact_distribution_projected_onto_atoms_is_calibrated():
    rewards, _ = exact(8_000, seed=4)
    sigma = 0.01 / math.sqrt(0.75)
    atoms = np.linspace(-5 * sigma, 5 * sigma, 51)
    # each outcome goes to its two neighbours, by distance: hats under the density
    fine = np.linspace(-5 * sigma, 5 * sigma, 20_001)
    step = atoms[1] - atoms[0]
    hats = np.clip(1.0 - np.abs(fine[:, None] - atoms) / step, 0.0, None)
    probs = stats.norm.pdf(fine, scale=sigma) @ hats
    distribution = np.broadcast_to(probs / probs.sum(), (8_000, 1, 51))
    made = passed(
        rewards, distribution, kind="categorical", support=atoms, value=np.zeros((8_000, 1))
    )
    written = calibration_document([made])
    assert predictions_of([made], gamma=0.5).windows.levels.size == ATOM_LEVELS
    assert written["levels"] == pytest.approx([0.0475 + 0.05 * k for k in range(19)], abs=0.003)
    assert sum(one["holds"] for one in written["coverage"]) == 19
    assert written["tail"]["holds"] is True
    # CVaR of a normal distribution at 5 % is -2.0627 deviations.
    assert written["tail"]["predicted"]["value"] / sigma == pytest.approx(-2.064, abs=0.0005)


# ------------------------------------------------------------------ verdicts


def test_an_exact_distribution_is_calibrated():
    written = calibration_document([passed(*exact(8_000, seed=1))])
    assert (written["horizon_bars"], written["discount"], written["left_out"]) == (4, 0.5, 0.0625)
    assert (written["windows"], written["independent"], written["bars"]) == (7_997, 2_000, 8_000)
    assert written["bars_needed"] == 800
    assert [one["holds"] for one in written["coverage"]] == [True] * 19
    assert written["pit"]["uniformity"]["value"] > 0.05
    assert written["tail"]["holds"] is True
    assert written["tail"]["gap"]["low"] < 0.0 < written["tail"]["gap"]["high"]
    assert written["value"]["gap"]["low"] < 0.0 < written["value"]["gap"]["high"]
    assert written["reason"] == ""
    assert documents.decode(documents.encode(written)) == written


def test_a_halved_tail_is_flagged():
    rewards, distribution = exact(8_000, seed=1)
    distribution[distribution < 0.0] /= 2
    written = calibration_document([passed(rewards, distribution)])
    assert written["tail"]["holds"] is False
    # Of 40 quantiles the lowest two, at -2.2414 and -1.7805 deviations of 0.011547, make 5 %.
    assert written["tail"]["predicted"]["value"] == pytest.approx(-0.011610, abs=1e-6)
    assert written["tail"]["gap"]["high"] < -0.005
    held = [
        one["holds"] for one in written["coverage"]
    ]  # levels 0.0375, 0.0875, ... 0.4375, 0.4875
    assert (held[:9], held[10:]) == ([False] * 9, [True] * 9)
    assert written["pit"]["uniformity"]["value"] < 1e-6
    assert written["summary"][1].endswith("worse than predicted")
    assert not written["summary"][1].endswith("no worse than predicted")


def test_a_tail_that_is_too_wide_is_no_worse_than_predicted():
    rewards, distribution = exact(8_000, seed=1)
    written = calibration_document([passed(rewards, 2.0 * distribution)])
    assert written["tail"]["holds"] is True
    assert written["tail"]["gap"]["low"] > 0.005
    assert written["summary"][1].endswith("no worse than predicted")


def test_a_bar_of_delay_between_prediction_and_outcome_shows():
    # The prediction knows the first bar of its own window: with a bar's shift it knows nothing.
    rewards, distribution = exact(8_000, seed=3)
    distribution = rewards[..., None] + 0.5 * distribution
    right = calibration_document([passed(rewards, distribution)])
    late = calibration_document([passed(rewards[1:], distribution[:-1])])
    assert sum(one["holds"] for one in right["coverage"]) == 19
    assert sum(one["holds"] for one in late["coverage"]) <= 5
    assert (right["tail"]["holds"], late["tail"]["holds"]) == (True, False)


def test_another_discount_than_that_of_the_critic_shows():
    # With 0.9 for 0.5 the sum has 2.3 times the variance.
    rewards, distribution = exact(40_000, seed=3)
    written = calibration_document([passed(rewards, distribution)], gamma=0.9)
    assert written["horizon_bars"] == 22
    assert written["tail"]["holds"] is False
    assert sum(one["holds"] for one in written["coverage"]) <= 3


@pytest.mark.campaign
def test_exact_distributions_are_rarely_called_false():
    # 200 worlds of 2,000 bars, 500 windows that share no bar. The intervals allow 5 tails and 190
    # of 3,800 levels; counting shared bars once makes it fewer.
    tails = levels = 0
    for seed in range(200):
        written = calibration_document([passed(*exact(2_000, seed=seed))])
        tails += written["tail"]["holds"] is False
        levels += sum(one["holds"] is False for one in written["coverage"])
    assert (tails, levels) == (2, 19)


def test_too_few_bars_give_no_figures_but_the_number_needed():
    written = calibration_document([passed(*exact(799, seed=1))])
    short = "not enough data: needs 200 windows that share no bar, found 199"
    assert written["tail"]["gap"]["value"] is None
    assert written["tail"]["gap"]["reason"] == short
    assert (written["tail"]["gap"]["needed"], written["tail"]["holds"]) == (200, None)
    assert written["coverage"][0]["holds"] is None
    assert written["coverage"][9]["holds"] is True  # the middle needs 30
    assert written["summary"][1] == f"mean of the worst 0.05: {short}, about 800 bars"


def test_fewer_bars_than_a_horizon_give_no_window():
    written = calibration_document([passed(*exact(3))], conformal=True)
    assert (written["windows"], written["independent"], written["by_regime"]) == (0, 0, {})
    assert written["tail"]["gap"]["reason"].endswith("needs 200 windows that share no bar, found 0")
    assert written["value"]["gap"]["reason"].endswith("needs 30 windows that share no bar, found 0")
    assert written["conformal"]["after"] == []
    assert documents.decode(documents.encode(written)) == written


def test_what_cannot_be_judged_says_why():
    rewards, distribution = exact(100)
    made = passed(rewards, distribution, gamma=None)
    bare = replace(made, distribution=None, value=None)
    unknown = "the agent's file does not name the discount that its critic was trained with"
    endless = "a sum without discount has no horizon after which it can be judged"
    for backtests, gamma, why in (
        ([made], None, unknown),
        ([made], 1.0, endless),
        ([bare], 0.5, "no critic predicted anything here"),
        ([], 0.5, "no critic predicted anything here"),
    ):
        written = calibration_document(backtests, gamma=gamma, conformal=True)
        assert (written["reason"], written["what"], written["windows"]) == (why, why, 0)
        assert written["tail"]["gap"] == {
            "value": None, "low": None, "high": None, "needed": 0, "found": 0, "unit": "bars",
            "reason": why,
        }  # fmt: skip
        assert set(written) == set(calibration_document([made], gamma=0.5))
        assert documents.decode(documents.encode(written)) == written


def test_a_critic_of_a_mean_alone_is_judged_by_its_mean():
    rewards, _ = exact(400, seed=2)
    made = passed(rewards + 0.001, np.full((400, 1, 1), 0.002), kind="scalar")
    written = calibration_document([made], conformal=True)
    # Bars earn 0.001: 4 of them, discounted, 0.001875, of an endless sum of 0.002.
    assert written["value"]["predicted"]["value"] == pytest.approx(0.002)
    came = predictions_of([made], gamma=0.5).windows.realised
    assert written["value"]["realised"]["value"] == pytest.approx(came.mean())
    reach = 1.959964 * came.std(ddof=1) / 10.0  # 100 windows that share no bar
    assert written["value"]["gap"]["low"] == pytest.approx(came.mean() - 0.002 - reach, abs=1e-8)
    assert written["tail"]["gap"]["reason"] == "the critic predicts a mean and no distribution"
    assert (written["coverage"], written["levels"], written["conformal"]) == ([], [], None)


def test_the_words_say_what_is_predicted_and_what_is_left_out():
    written = calibration_document([passed(*exact(50), gamma=0.99)])
    assert written["what"] == (
        "At each decision the critic predicts the distribution of a discounted sum: the logarithm "
        "of the account's equity after each bar over what it was before, from that decision on, "
        "with the discount 0.99 a bar, under the agent's own decisions as it drew them in training "
        "(a backtest takes the likeliest ones unless told otherwise). An episode that ran out of "
        "time did not end the sum: it went on with the critic's own prediction. A stop ends it. It "
        "is compared with what the next 230 bars brought. Later bars carry 9.9% of the weight and "
        "are left out: about that share of the mean, and of the spread 0.5% where bars are "
        "independent."
    )


# ------------------------------------------------------------------ regimes


def test_regimes_are_those_of_the_loops():
    draws = stream(8)
    moves = draws.standard_normal(400) * np.repeat([1.0, 3.0, 0.2, 0.0], 100)
    starts = np.arange(400)
    outcome = regimes_of(moves, starts).tolist()
    wanted = [oracle.regime(moves.tolist(), now, window=64, least=64) for now in range(400)]
    assert outcome == wanted
    assert outcome.index("stormy") >= 127  # 64 spells of 64 bars end by then
    assert set(outcome[:127]) == {""}
    assert {one: outcome.count(one) for one in set(outcome)}["calm"] > 50


def test_the_borders_of_regimes_are_those_of_the_loops():
    # Of 65 spells the 22nd is the first beyond a third: in 300 worlds it comes up several times.
    for seed in range(300):
        moves = stream(seed).standard_normal(128)
        wanted = oracle.regime(moves.tolist(), 128, window=64, least=64)
        assert regimes_of(moves, np.array([128])).tolist() == [wanted]


def test_regimes_know_nothing_of_later_bars():
    moves = stream(9).standard_normal(300)
    other = moves.copy()
    other[200:] *= 50.0
    starts = np.arange(0, 300)
    same = regimes_of(moves, starts) == regimes_of(other, starts)
    assert same[:201].all()  # decision 200 knows moves up to 199
    assert not same.all()


def test_a_critic_that_misses_storms_is_found_in_them():
    # 300 calm bars, 300 of three times the size, and so on; a distribution for the mean size.
    count = 24_000
    size = np.where(np.arange(count) // 300 % 2, 0.03, 0.01)[:, None]
    rewards = size * stream(6).standard_normal((count, 1))
    sigma = 0.02 / math.sqrt(0.75)
    distribution = np.broadcast_to(sigma * stats.norm.ppf(midpoints(40)), (count, 1, 40))
    written = calibration_document([passed(rewards, distribution)])
    regimes = written["by_regime"]
    assert list(regimes) == ["calm", "usual", "stormy"]
    assert regimes["stormy"]["tail"]["holds"] is False
    assert regimes["calm"]["tail"]["holds"] is True
    assert regimes["calm"]["tail"]["gap"]["low"] > 0.0
    assert sum(one["windows"] for one in regimes.values()) == 24_000 - 3 - 127
    assert set(regimes["calm"]) == {"windows", "independent", "value", "coverage", "pit", "tail"}


def test_regimes_may_be_those_of_the_market():
    rewards, distribution = exact(600)
    closes = np.exp(np.cumsum(stream(3).standard_normal((601, 1)) / 100, axis=0))
    made = passed(rewards, distribution)
    written = calibration_document([made], closes=[closes])
    assert "of the market's moves over the 64 bars" in written["regimes"]
    moves = np.diff(np.log(closes[:, 0])).tolist()
    wanted = [oracle.regime(moves, now, window=64, least=64) for now in range(597)]
    assert {name: one["windows"] for name, one in written["by_regime"].items()} == {
        name: wanted.count(name) for name in ("calm", "usual", "stormy")
    }


def test_closes_are_those_at_the_marks():
    bars = panel(120)
    outcome = backtest(agent_for(bars), bars, plain())
    closes = closes_of(outcome, bars)
    assert closes.tolist() == bars.close[-109:].tolist()
    assert closes.shape == outcome.sleeves.shape


# ------------------------------------------------------------------ the correction


def test_the_correction_is_fitted_on_one_half_and_judged_on_the_other():
    rewards, distribution = exact(8_000, seed=1)
    written = calibration_document([passed(rewards, distribution + 0.01)], conformal=True)[
        "conformal"
    ]
    # 7,997 windows: the first 3,998 are fitted, at every fourth of which one shares no bar.
    assert (written["windows"], written["judged"], written["gap_bars"]) == (1_000, 3_995, 4)
    assert written["independent"] == 999
    assert len(written["shifts"]) == len(written["levels"]) == 19
    for shift in written["shifts"]:
        assert shift["value"] == pytest.approx(-0.01, abs=0.0015)
    assert sum(one["holds"] for one in written["before"]) == 0
    assert sum(one["holds"] for one in written["after"]) >= 18


def test_the_correction_by_loops():
    rewards, distribution = exact(200, n=4, seed=1)
    made = passed(rewards, distribution)
    written = calibration_document([made], conformal=True)["conformal"]
    equity = made.sleeves[:, 0].tolist()
    came = [
        oracle.realised(equity, [False] * 200, first, 4, 0.5, floor=FLOOR) for first in range(197)
    ]
    # 197 windows; those before the 98th are fitted, 0, 4, ..., 96; judged from 98 + 4.
    fitted = range(0, 98, 4)
    assert (written["windows"], written["judged"]) == (25, 197 - 102)
    for column, rank in enumerate((3, 9, 17, 23)):  # 26 x 0.125, 0.375 down; 0.625, 0.875 up
        errors = sorted(came[t] - distribution[t, 0, column] for t in fitted)
        assert written["shifts"][column]["value"] == pytest.approx(errors[rank - 1], abs=1e-13)
    column = 1
    moved = distribution[0, 0, column] + written["shifts"][column]["value"]
    share = sum(came[t] <= moved for t in range(102, 197)) / 95
    assert written["after"][column]["share"]["found"] == 24
    assert written["after"][column]["share"]["value"] is None  # needs 30
    longer = calibration_document([passed(*exact(400, n=4, seed=1))], conformal=True)["conformal"]
    assert longer["after"][column]["share"]["found"] == 49
    assert 0.0 < share < 1.0


def test_levels_with_too_few_windows_stay_uncorrected():
    written = calibration_document([passed(*exact(130, seed=1))], conformal=True)["conformal"]
    assert written["windows"] == 16
    assert written["shifts"][0]["reason"] == (
        "not enough data: needs 26 windows that share no bar, found 16"
    )
    assert [one["level"] for one in written["after"]] == pytest.approx(
        [one["level"] for one in written["before"]][1:]
    )


# ------------------------------------------------------------------ refusals and the way in


@pytest.mark.refusal
def test_backtests_of_several_discounts_are_refused():
    rewards, distribution = exact(50)
    with pytest.raises(ConfigError) as caught:
        calibration_document(
            [passed(rewards, distribution), passed(rewards, distribution, gamma=0.9)]
        )
    assert str(caught.value) == (
        "backtests that are calibrated together must be of agents with one discount; found 0.5, "
        "0.9. Calibrate them one by one. [config-inconsistent]"
    )


@pytest.mark.refusal
def test_backtests_of_other_critics_are_refused():
    rewards, distribution = exact(50)
    with pytest.raises(ConfigError) as caught:
        calibration_document(
            [passed(rewards, distribution), passed(rewards, distribution[..., :8])]
        )
    assert str(caught.value) == (
        "backtests must be on bars of one length, with critics of one kind and width; found 1h "
        "quantile 8, 1h quantile 40. Calibrate those that belong together. [config-inconsistent]"
    )


@pytest.mark.refusal
def test_closes_that_do_not_fit_are_refused():
    rewards, distribution = exact(50)
    with pytest.raises(ShapeError) as caught:
        calibration_document([passed(rewards, distribution)], closes=[np.ones((50, 1))])
    assert str(caught.value) == (
        "`closes` must have the shape [51, 1]; found [50, 1]. Pass the close of every symbol at "
        "every mark, as `closes_of` returns them. [shape-mismatch]"
    )
    bars, other = panel(120), panel(90)
    with pytest.raises(ConfigError, match="the panel must be the one that the backtest traded"):
        closes_of(backtest(agent_for(bars), bars, plain()), other)


@pytest.mark.parametrize("kind", ["quantile", "categorical", "scalar"])
def test_every_kind_of_critic_goes_through(kind):
    bars = panel(160)
    agent = agent_for(bars, critic=CriticConfig(kind=kind))
    outcome = backtest(agent, bars, plain())
    assert outcome.notes["gamma"] is None  # the lab's agents do not name it
    written = calibration_document(
        [outcome], gamma=0.5, conformal=True, closes=[closes_of(outcome, bars)]
    )
    assert written["windows"] == 3 * (148 - 3)
    assert written["independent"] == 37
    assert written["value"]["gap"]["value"] is not None
    assert documents.decode(documents.encode(written)) == written


def test_a_replay_has_no_critic():
    bars = panel(120)
    written = calibration_document([replay(np.zeros(bars.shape), bars, plain())])
    assert written["reason"] == "no critic predicted anything here"


# ------------------------------------------------------------------ the longest that can be judged


def test_the_longest_horizon_of_which_enough_windows_fit():
    # 200 windows are needed. Of 1,001 decisions 5 bars fit 200 times, 6 bars 166 times.
    given = {"alpha": 0.05, "bar_ms": 3_600_000, "longest": 100}
    assert judged_horizon([1_001], **given) == 5
    assert judged_horizon([1_000], **given) == 4
    # two folds: 100 windows each
    assert judged_horizon([501, 501], **given) == 5
    assert judged_horizon([1_001], **{**given, "longest": 3}) == 3
    # bars of a quarter of an hour: four are the least, 250 of them fit into 1,001 decisions
    assert judged_horizon([801], **{**given, "bar_ms": 900_000}) == 4
    assert judged_horizon([800], **{**given, "bar_ms": 900_000}) is None


def test_windows_are_those_of_the_loops():
    gamma, alpha, n, horizon = 0.9, 0.5, 4, 3
    draw = stream(8)
    rewards = 0.01 * draw.standard_normal((63, 1))
    predicted = np.sort(0.02 * draw.standard_normal((63, 1, n)), axis=-1)
    found = judged_tail([passed(rewards, predicted, gamma=gamma)], gamma=gamma, alpha=alpha,
                        longest=horizon + 1)  # fmt: skip
    assert found is not None
    assert found[0] == 2  # 30 windows: (63 - 1) // 2 = 31, and of 3 bars only 20
    horizon, brackets, forecasts = 2, [], []
    starts = sorted({j * horizon // 8 for j in range(8 * 63)})
    for t in (start for start in starts if start + horizon <= 62):
        law = predicted[t, 0]
        level = law[math.ceil(alpha * n) - 1]
        total = sum(gamma**k * rewards[t + k, 0] for k in range(horizon))
        outcomes = [total + gamma**horizon * later for later in predicted[t + horizon, 0]]
        brackets.append(level + np.mean([min(y - level, 0.0) for y in outcomes]) / alpha)
        forecasts.append(law[:2].mean())
    check = found[1]
    assert check.realised.value == pytest.approx(np.mean(brackets), abs=1e-14)
    assert check.predicted.value == pytest.approx(np.mean(forecasts), abs=1e-14)
    gap = np.mean(np.array(brackets) - forecasts)
    assert check.gap.value == pytest.approx(gap, abs=1e-14)
    assert (check.gap.found, check.gap.needed) == (31, 30)


def test_an_exact_critic_holds_where_its_own_horizon_is_too_long():
    # a discount of .9: 22 bars, 200 windows are 4,400; with 2,000 bars 9 can be judged
    rewards, predicted = exact(2_000, gamma=0.9, n=200, seed=3)
    report = calibration_of([passed(rewards, predicted, gamma=0.9)])
    assert report.checks.tail.gap.value is None
    assert report.judged_horizon == 9
    assert report.judged_tail.holds is True
    halved = calibration_of([passed(rewards, 0.5 * predicted, gamma=0.9)])
    assert halved.judged_tail.holds is False
    assert report.document()["judged_horizon"] == 9


def test_where_its_own_horizon_suffices_no_other_is_judged():
    rewards, predicted = exact(1_000, gamma=0.5, seed=3)
    report = calibration_of([passed(rewards, predicted)])
    assert (report.judged_horizon, report.judged_tail) == (None, None)


def test_exact_critics_are_seldom_called_false():
    # 60 worlds of 1,200 bars: a one-sided 2.5 % are 1.5, and 5 the 99 % bound of chance
    wrong = 0
    for seed in range(60):
        rewards, predicted = exact(1_200, gamma=0.9, n=200, seed=500 + seed)
        found = judged_tail([passed(rewards, predicted, gamma=0.9)], gamma=0.9, alpha=0.05,
                            longest=22)  # fmt: skip
        wrong += found[1].holds is False
    assert wrong <= 5


def test_a_mean_alone_has_no_tail():
    rewards = 0.01 * stream(1).standard_normal((900, 1))
    nothing = passed(rewards, np.zeros((900, 1, 1)), kind="scalar", value=np.zeros((900, 1)))
    assert judged_tail([nothing], gamma=0.9, alpha=0.05, longest=22) is None


def test_the_interval_of_a_mean_by_loops_and_its_coverage():
    values = stream(4).standard_normal(60).cumsum()
    low, high = block_mean_interval(values, block=5, generator=stream(2), repetitions=50)
    starts = stream(2).integers(0, 60, (50, 12))
    means = [
        np.mean([values[(start + k) % 60] for start in row for k in range(5)]) for row in starts
    ]
    assert [low, high] == pytest.approx(np.quantile(means, (0.025, 0.975)), abs=1e-12)
    covered = 0
    for seed in range(200):
        x = stats.norm.rvs(size=800, random_state=seed)
        overlapping = np.convolve(x, np.ones(8), mode="valid")  # each shares seven with the next
        low, high = block_mean_interval(overlapping, block=32, generator=stream(seed))
        covered += low <= 0.0 <= high
    assert covered >= 180
