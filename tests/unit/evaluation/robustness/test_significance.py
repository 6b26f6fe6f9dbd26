"""Luck as plain data, and the fan of what else could have happened."""

import numpy as np
import pytest
from arch.bootstrap import StationaryBootstrap

from backtest_lab import agent_for, panel, plain
from oracles import promises as oracle
from stormsail.core.errors import ShapeError
from stormsail.core.files import documents
from stormsail.core.generators import Generators
from stormsail.evaluation.engine.run import backtest, replay
from stormsail.evaluation.robustness.significance import (
    FAN_LEVELS,
    fan_bands,
    fan_document,
    fan_places,
    luck_document,
    luck_of,
)
from stormsail.evaluation.stats.bootstrap import block_length
from stormsail.evaluation.stats.figures import per_bar_sharpe
from stormsail.evaluation.stats.sharpe import judge_luck
from stormsail.evaluation.stats.trials import TrialLedger

HOUR = 3_600_000


def stream(seed):
    return np.random.Generator(np.random.PCG64(seed))


def series(count, seed=0):
    return 0.001 + 0.01 * stream(seed).standard_normal(count)


def marks(count):
    return (1_000 + np.arange(count + 1)) * HOUR


def test_the_document_holds_what_luck_says():
    returns, tried, against = series(300), stream(5).standard_normal((300, 3)) / 100, series(300, 9)
    given = {"trial_sharpes": [0.1, 0.0, -0.05], "trials": 5, "tried": tried, "benchmark": against}
    told = luck_document(
        returns, marks(300), per_year=8760, generator=stream(1), repetitions=50, **given
    )
    luck = judge_luck(returns, per_year=8760, generator=stream(1), repetitions=50, **given)
    for name in ("mean_return", "sharpe", "cvar", "drawdown"):
        assert told["intervals"][name] == getattr(luck.intervals, name).document()
    assert told["intervals"]["block"] == luck.intervals.block
    for name in (
        "probabilistic", "deflated", "expected_maximum", "track_record", "overfitting",
        "superiority",
    ):  # fmt: skip
        assert told[name] == getattr(luck, name).document()
    assert told["trials"] == 5
    assert set(told["fan"]) == {"ts", "levels", "equity", "reason"}
    assert told["summary"][1] == (
        f"probability of a Sharpe ratio above 0 after 5 trials: {luck.deflated}"
    )
    assert documents.decode(documents.encode(told)) == told


def test_what_was_not_given_is_none():
    told = luck_document(
        series(120), marks(120), per_year=8760, trial_sharpes=[0.1], generator=stream(1),
        repetitions=20,
    )  # fmt: skip
    assert (told["overfitting"], told["superiority"], told["trials"]) == (None, None, 1)
    assert told["summary"][1].startswith("probability of a Sharpe ratio above 0 after 1 trial: ")
    assert len(told["summary"]) == 2


def test_the_fan_is_that_of_the_loops():
    returns, places = series(130), np.array([0, 1, 57, 130])
    bands = fan_bands(returns, places, generator=stream(4), repetitions=40, block=7)
    drawn = StationaryBootstrap(7, np.arange(130), seed=stream(4))
    draws = [sample[0].tolist() for sample, _ in drawn.bootstrap(40)]
    wanted = oracle.fan(returns.tolist(), draws, places.tolist(), FAN_LEVELS)
    assert bands == pytest.approx(np.array(wanted), rel=1e-12)
    assert bands[:, 0].tolist() == [1.0] * 5


def test_bands_lie_where_independent_paths_end():
    # The log of 400 bars has the mean 400 m and the deviation 20 s: 5 % of paths end below
    # exp(400 m - 1.645 x 20 s).
    growth = stream(2).standard_normal(400)
    growth = 0.0005 + 0.01 * (growth - growth.mean()) / growth.std()
    told = fan_document(np.expm1(growth), marks(400), generator=stream(3), block=1)
    ends = np.log([band[-1] for band in told["equity"]])
    wanted = 0.2 + 0.2 * np.array([-1.6449, -0.6745, 0.0, 0.6745, 1.6449])
    assert ends == pytest.approx(wanted, abs=0.03)
    assert told["levels"] == [0.05, 0.25, 0.5, 0.75, 0.95]


def test_marks_of_the_fan_reach_from_the_first_to_the_last():
    assert fan_places(100).tolist() == list(range(101))
    long = fan_places(10_000)
    assert (long[0], long[-1], long.size) == (0, 10_000, 120)
    assert set(np.diff(long).tolist()) == {84, 85}
    told = fan_document(series(1_000), marks(1_000), generator=stream(3), repetitions=10)
    assert told["ts"] == [(1_000 + one) * HOUR for one in fan_places(1_000).tolist()]
    assert {len(band) for band in told["equity"]} == {120}


def test_the_fan_chooses_the_block_of_the_intervals():
    returns = np.repeat(series(60), 4)
    chosen = fan_document(returns, marks(240), generator=stream(3), repetitions=10)
    named = fan_document(
        returns, marks(240), generator=stream(3), repetitions=10, block=block_length(returns)
    )
    assert chosen == named
    assert block_length(returns) > 4


def test_a_ruined_path_stays_at_nothing():
    returns = np.zeros(120)
    returns[60] = -1.0
    bands = fan_bands(
        returns, np.array([0, 120]), generator=stream(1), repetitions=50, block=1, levels=[0.5]
    )
    assert bands[0].tolist() == [1.0, 0.0]


def test_too_few_bars_give_no_fan_but_the_number_needed():
    told = luck_document(
        series(99), marks(99), per_year=8760, trial_sharpes=[0.1], generator=stream(1)
    )
    assert told["fan"] == {
        "ts": [],
        "levels": [0.05, 0.25, 0.5, 0.75, 0.95],
        "equity": [[], [], [], [], []],
        "reason": "not enough data: needs 100 bars, found 99",
    }
    assert told["intervals"]["sharpe"]["value"] is None


@pytest.mark.refusal
def test_marks_that_do_not_fit_are_refused():
    with pytest.raises(ShapeError) as caught:
        luck_document(
            series(120), marks(119), per_year=8760, trial_sharpes=[0.1], generator=stream(1)
        )
    assert str(caught.value) == (
        "`ts` must have the shape [121], one mark more than returns; found [120]. Pass the times "
        "of the equity that the returns are of. [shape-mismatch]"
    )


def test_a_backtest_is_deflated_by_the_trials_on_its_data(tmp_path):
    bars = panel(120)
    found = backtest(agent_for(bars), bars, plain())
    rival = replay(np.ones(bars.shape), bars, found.config.during(found.span))
    ledger = TrialLedger(tmp_path / "trials.jsonl")
    for number, (data, sharpe) in enumerate(
        [("mine", 0.02), ("mine", 0.05), ("mine", None), ("other", 0.9)]
    ):
        ledger.record(
            kind="training",
            name=f"run-{number}",
            config_hash="c",
            data_hash=data,
            sharpe_per_bar=sharpe,
            bars=100,
            status="finished" if sharpe is not None else "failed",
        )

    def told(**given):
        return luck_of(found, benchmark=rival, **given)

    def wanted(sharpes, trials):
        return luck_document(
            found.returns,
            found.ts,
            per_year=8_760.0 * HOUR / bars.interval.milliseconds,
            trial_sharpes=sharpes,
            trials=trials,
            benchmark=rival.returns,
            generator=Generators(0).numpy("backtest.luck"),
        )

    assert told(ledger=ledger.path, data_hash="mine") == wanted([0.02, 0.05], 3)
    assert told(ledger=ledger.path, data_hash="nowhere") == wanted([0.02, 0.05, 0.9], 4)
    alone = wanted([per_bar_sharpe(found.returns)], 1)
    assert told() == told(ledger=tmp_path / "none.jsonl") == alone
