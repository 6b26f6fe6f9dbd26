"""Tests of significance, their document, and the fan of resampled paths."""

import numpy as np
import pytest

from backtest_lab import agent_for, panel, plain
from oracles import predictions as oracle
from oracles import significance as tests_oracle
from stormsail.core.errors import ShapeError
from stormsail.core.files import documents
from stormsail.core.generators import Generators
from stormsail.evaluation.engine.run import backtest, replay
from stormsail.evaluation.robustness.significance import (
    FAN_LEVELS,
    equity_fan,
    fan_bands,
    fan_places,
    significance,
    significance_of,
)
from stormsail.evaluation.stats import figures, sharpe
from stormsail.evaluation.stats.bootstrap import (
    block_length,
    bootstrap_intervals,
    superiority,
)
from stormsail.evaluation.stats.figures import per_bar_sharpe
from stormsail.evaluation.stats.trials import TrialLedger

HOUR = 3_600_000
YEAR = 8_760.0


def stream(seed):
    return np.random.Generator(np.random.PCG64(seed))


def series(count, seed=0):
    return 0.001 + 0.01 * stream(seed).standard_normal(count)


def marks(count):
    return (1_000 + np.arange(count + 1)) * HOUR


def test_every_test_is_that_of_its_own_function():
    tried = 0.01 * stream(4).standard_normal((400, 6))
    ratios = figures.per_bar_sharpe(tried)
    best = tried[:, ratios.argmax()]
    hold = 0.01 * stream(5).standard_normal(400)
    result = significance(
        best,
        marks(400),
        trial_sharpes=ratios,
        trials=9,
        per_year=YEAR,
        generator=stream(6),
        tried=tried,
        benchmark=hold,
        blocks=8,
        repetitions=50,
    )
    assert result.trials == 9
    assert result.probabilistic.value == sharpe.probabilistic_sharpe(best)
    assert result.deflated.value == sharpe.deflated_sharpe(best, trial_sharpes=ratios, trials=9)
    assert result.expected_maximum.value == sharpe.trials_benchmark(ratios, trials=9, bars=400)
    assert result.track_record.value == sharpe.minimum_track_record(best)
    assert result.overfitting.value == tests_oracle.overfitting(tried.tolist(), 8)
    assert (
        0.0 <= result.superiority.low <= result.superiority.value <= result.superiority.high <= 1.0
    )
    assert result.intervals.sharpe.value == figures.sharpe(best, per_year=YEAR)


def test_draws_are_taken_for_intervals_benchmark_and_fan_in_this_order():
    returns, against = series(200), series(200, 9)
    result = significance(
        returns, marks(200), trial_sharpes=[0.1], per_year=YEAR, generator=stream(6),
        benchmark=against, repetitions=20,
    )  # fmt: skip
    draws = stream(6)
    intervals = bootstrap_intervals(returns, per_year=YEAR, generator=draws, repetitions=20)
    assert result.intervals == intervals
    assert result.superiority == superiority(returns, against, generator=draws, repetitions=20)
    fan = equity_fan(returns, marks(200), generator=draws, repetitions=20, block=intervals.block)
    assert result.fan.document() == fan.document()


def test_too_little_data_is_named_and_nothing_is_claimed():
    result = significance(
        series(29), marks(29), trial_sharpes=[0.1], trials=3, per_year=YEAR, generator=stream(0)
    )
    assert result.probabilistic.reason == "not enough data: needs 30 bars, found 29"
    assert result.track_record.reason == "not enough data: needs 30 bars, found 29"
    assert result.intervals.sharpe.reason == "not enough data: needs 100 bars, found 29"
    assert result.intervals.cvar.reason == "not enough data: needs 200 bars, found 29"
    assert result.deflated.reason == "not enough data: needs 30 bars, found 29"
    assert result.expected_maximum.value is None
    assert (result.overfitting, result.superiority, result.intervals.block) == (None, None, None)


def test_the_document_holds_every_figure():
    returns, tried, against = series(300), stream(5).standard_normal((300, 3)) / 100, series(300, 9)
    given = {"trial_sharpes": [0.1, 0.0, -0.05], "trials": 5, "tried": tried, "benchmark": against}
    result = significance(
        returns, marks(300), per_year=8760, generator=stream(1), repetitions=50, **given
    )
    written = result.document()
    for name in ("mean_return", "sharpe", "cvar", "max_drawdown"):
        assert written["intervals"][name] == getattr(result.intervals, name).document()
    assert written["intervals"]["block"] == result.intervals.block
    for name in (
        "probabilistic", "deflated", "expected_maximum", "track_record", "overfitting",
        "superiority",
    ):  # fmt: skip
        assert written[name] == getattr(result, name).document()
    assert written["trials"] == 5
    assert set(written["fan"]) == {"ts", "levels", "equity", "reason"}
    assert written["summary"][1] == (
        f"probability of a Sharpe ratio above 0 after 5 trials: {result.deflated}"
    )
    assert documents.decode(documents.encode(written)) == written


def test_what_was_not_given_is_none():
    written = significance(
        series(120), marks(120), per_year=8760, trial_sharpes=[0.1], generator=stream(1),
        repetitions=20,
    ).document()  # fmt: skip
    assert (written["overfitting"], written["superiority"], written["trials"]) == (None, None, 1)
    assert written["summary"][1].startswith("probability of a Sharpe ratio above 0 after 1 trial: ")
    assert len(written["summary"]) == 2


def test_the_fan_is_that_of_the_loops():
    from arch.bootstrap import StationaryBootstrap  # half a second of imports, so not above

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
    written = equity_fan(np.expm1(growth), marks(400), generator=stream(3), block=1).document()
    ends = np.log([band[-1] for band in written["equity"]])
    wanted = 0.2 + 0.2 * np.array([-1.6449, -0.6745, 0.0, 0.6745, 1.6449])
    assert ends == pytest.approx(wanted, abs=0.03)
    assert written["levels"] == [0.05, 0.25, 0.5, 0.75, 0.95]


def test_marks_of_the_fan_reach_from_the_first_to_the_last():
    assert fan_places(100).tolist() == list(range(101))
    long = fan_places(10_000)
    assert (long[0], long[-1], long.size) == (0, 10_000, 120)
    assert set(np.diff(long).tolist()) == {84, 85}
    written = equity_fan(
        series(1_000), marks(1_000), generator=stream(3), repetitions=10
    ).document()
    assert written["ts"] == [(1_000 + one) * HOUR for one in fan_places(1_000).tolist()]
    assert {len(band) for band in written["equity"]} == {120}


def test_the_fan_chooses_the_block_of_the_intervals():
    returns = np.repeat(series(60), 4)
    chosen = equity_fan(returns, marks(240), generator=stream(3), repetitions=10).document()
    named = equity_fan(
        returns, marks(240), generator=stream(3), repetitions=10, block=block_length(returns)
    ).document()
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
    written = significance(
        series(99), marks(99), per_year=8760, trial_sharpes=[0.1], generator=stream(1)
    ).document()
    assert written["fan"] == {
        "ts": [],
        "levels": [0.05, 0.25, 0.5, 0.75, 0.95],
        "equity": [[], [], [], [], []],
        "reason": "not enough data: needs 100 bars, found 99",
    }
    assert written["intervals"]["sharpe"]["value"] is None


@pytest.mark.refusal
def test_marks_that_do_not_fit_are_refused():
    with pytest.raises(ShapeError) as caught:
        significance(
            series(120), marks(119), per_year=8760, trial_sharpes=[0.1], generator=stream(1)
        )
    assert str(caught.value) == (
        "`ts` must have the shape [121], one mark more than returns; found [120]. Pass the times "
        "of the equity that the returns are of. [shape-mismatch]"
    )


def test_a_backtest_is_deflated_by_the_trials_on_its_data(tmp_path):
    bars = panel(120)
    result = backtest(agent_for(bars), bars, plain())
    hold = replay(np.ones(bars.shape), bars, result.config.during(result.span))
    ledger = TrialLedger(tmp_path / "trials.jsonl")
    for number, (data, ratio) in enumerate(
        [("mine", 0.02), ("mine", 0.05), ("mine", None), ("other", 0.9)]
    ):
        ledger.record(
            kind="validation" if number else "training",
            name=f"run-{number}",
            config_hash="c",
            data_hash=data,
            sharpe_per_bar=ratio,
            bars=100,
            status="finished" if ratio is not None else "stopped",
        )

    def written(**given):
        return significance_of(result, benchmark=hold, **given).document()

    def wanted(sharpes, trials):
        return significance(
            result.returns,
            result.ts,
            per_year=8_760.0 * HOUR / bars.interval.milliseconds,
            trial_sharpes=sharpes,
            trials=trials,
            benchmark=hold.returns,
            generator=Generators(0).numpy("backtest.luck"),
        ).document()

    # the training has no ratio that counts, and 100 bars of the others are as many standard errors
    # over the bars of this one
    same = np.sqrt(100 / len(result.returns))
    assert written(ledger=ledger.path, data_hash="mine") == wanted([0.05 * same], 3)
    assert written(ledger=ledger.path, data_hash="nowhere") == wanted([0.05 * same, 0.9 * same], 4)
    alone = wanted([per_bar_sharpe(result.returns)], 1)
    assert written() == written(ledger=tmp_path / "none.jsonl") == alone
