"""Statistical significance of a result: deflated Sharpe ratio, bootstrap, benchmark, overfitting.

`significance` computes every test of a series of returns, and the fan of resampled equity paths;
`significance_of` does so for a backtest, with the trials that a ledger knows of.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stormsail.core import steps
from stormsail.core.errors import ShapeError
from stormsail.core.files.documents import JsonValue, Record, plain
from stormsail.core.generators import Generators
from stormsail.evaluation.engine.result import Backtest
from stormsail.evaluation.stats import figures
from stormsail.evaluation.stats.bootstrap import (
    MINIMUM_RESAMPLED,
    Intervals,
    block_length,
    bootstrap_intervals,
    superiority,
)
from stormsail.evaluation.stats.figures import Array
from stormsail.evaluation.stats.overfitting import overfitting_statement
from stormsail.evaluation.stats.sharpe import (
    counted_trials,
    deflated_sharpe,
    minimum_track_record,
    probabilistic_sharpe,
    trials_benchmark,
)
from stormsail.evaluation.stats.statement import MINIMUM_BARS, Statement, state
from stormsail.evaluation.stats.trials import TrialLedger

FAN_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Shares of resampled paths that lie below each band of the fan."""

FAN_MARKS = 120
"""Marks of the fan, at most."""


@dataclass(frozen=True, eq=False)
class Fan(Record):
    """Quantile bands of equity over resampled paths.

    Attributes:
        ts: [M] UTC milliseconds of the marks.
        equity: [levels, M] as a multiple of that at the start, lowest level first.
        reason: why there is no fan; empty where there is one.
    """

    ts: NDArray[np.int64]
    equity: Array
    reason: str = ""

    def document(self) -> dict[str, JsonValue]:
        """Return it as JSON."""
        return {**super().document(), "levels": list(FAN_LEVELS)}


@dataclass(frozen=True, eq=False)
class Significance(Record):
    """Every test of whether a result could be chance.

    Attributes:
        intervals: bootstrap intervals of mean, Sharpe ratio, tail and drawdown.
        probabilistic: probability that the true Sharpe ratio is above 0, if nothing was chosen.
        deflated: the same after the search; compare it with 0.95.
        expected_maximum: per-bar Sharpe ratio that the best of the trials would show without
            skill, `sharpe.trials_benchmark`.
        track_record: bars needed until the Sharpe ratio is significant, at 95 %.
        overfitting: probability that choosing the best chose nothing; None without columns. Of a
            validation, among its seeds.
        configurations: the same among the configurations that a workspace tried; None where there
            is none.
        superiority: p-value of "nothing that was tried beats the benchmark"; None without one.
        trials: how many trials were counted.
        fan: of resampled equity paths.
    """

    intervals: Intervals
    probabilistic: Statement
    deflated: Statement
    expected_maximum: Statement
    track_record: Statement
    overfitting: Statement | None
    superiority: Statement | None
    trials: int
    fan: Fan
    configurations: Statement | None = None

    @property
    def summary(self) -> list[str]:
        """What a reader wants first, one sentence a figure."""
        after = f"after {self.trials} trial{'' if self.trials == 1 else 's'}"
        tested = self.superiority
        return [
            f"mean return of a bar: {self.intervals.mean_return}",
            f"probability of a Sharpe ratio above 0 {after}: {self.deflated}",
            *([] if tested is None else [f"beats the benchmark: p = {tested}"]),
            *self.overfitting_words,
        ]

    @property
    def overfitting_words(self) -> list[str]:
        """Each probability of overfitting that was computed, in a sentence."""
        columns = {"seeds": self.overfitting, "configurations tried": self.configurations}
        return [
            f"probability of overfitting among {name}: {stated}"
            for name, stated in columns.items()
            if stated is not None
        ]

    def document(self) -> dict[str, JsonValue]:
        """Return everything as JSON."""
        return {**super().document(), "summary": plain(self.summary)}


def significance(
    returns: ArrayLike,
    ts: ArrayLike,
    *,
    per_year: float,
    trial_sharpes: ArrayLike,
    generator: np.random.Generator,
    trials: int | None = None,
    tried: ArrayLike | None = None,
    benchmark: ArrayLike | None = None,
    alpha: float = 0.05,
    blocks: int = 16,
    repetitions: int = 1_000,
) -> Significance:
    """Return every test of significance of a result, each with the data it needs.

    Args:
        returns: [T], simple return of each bar, of the trial that was chosen.
        ts: [T + 1], UTC milliseconds of the marks, the first before the first return.
        per_year: bars in a year.
        trial_sharpes: per-bar Sharpe ratio of every trial, NaN for those that failed.
        generator: where the draws come from: intervals, benchmark and fan, in this order.
        trials: number of trials, where more are known than have a Sharpe ratio.
        tried: [T, S], returns of everything that was tried, for the probability of overfitting.
        benchmark: [T], returns of what to beat.
        alpha: share of worst bars.
        blocks: blocks of the cross-validation.
        repetitions: resamples of each bootstrap.

    Raises:
        ShapeError: if there is not one mark more than returns.
        RangeError: if there is no trial, or `trials` is below the number of Sharpe ratios.
    """
    returns = figures.as_series(returns, name="returns")
    marks = np.asarray(ts, dtype=np.int64)
    if marks.shape != (returns.size + 1,):
        raise ShapeError(
            wrong=f"`ts` must have the shape [{returns.size + 1}], one mark more than returns",
            found=str(list(marks.shape)),
            remedy="Pass the times of the equity that the returns are of.",
        )
    count, known = counted_trials(trial_sharpes, trials)
    bars = returns.size
    intervals = bootstrap_intervals(
        returns, per_year=per_year, generator=generator, alpha=alpha, repetitions=repetitions
    )
    columns = returns if tried is None else tried
    return Significance(
        intervals=intervals,
        probabilistic=state(
            lambda: probabilistic_sharpe(returns),
            needed=MINIMUM_BARS,
            found=bars,
            why="all returns are equal",
        ),
        deflated=state(
            lambda: deflated_sharpe(returns, trial_sharpes=known, trials=count),
            needed=MINIMUM_BARS,
            found=bars,
            why="all returns are equal",
        ),
        expected_maximum=state(
            lambda: trials_benchmark(known, trials=count, bars=bars),
            needed=MINIMUM_BARS,
            found=bars,
        ),
        track_record=state(
            lambda: minimum_track_record(returns),
            needed=MINIMUM_BARS,
            found=bars,
            why="the Sharpe ratio is not above 0, so no length proves it",
        ),
        overfitting=None if tried is None else overfitting_statement(tried, blocks=blocks),
        superiority=None
        if benchmark is None
        else superiority(columns, benchmark, generator=generator, repetitions=repetitions),
        trials=count,
        fan=equity_fan(
            returns, marks, generator=generator, repetitions=repetitions, block=intervals.block
        ),
    )


def significance_of(
    backtest: Backtest,
    *,
    benchmark: Backtest,
    ledger: Path | str | None = None,
    data_hash: str | None = None,
) -> Significance:
    """Return the significance of one backtest, after the search that a trial ledger knows of.

    Trials are those of the ledger on the agent's data, or all of them where it knows none on that
    data: too many trials make the answer too low, never too high. Without any, the backtest is the
    only one.

    Args:
        backtest: its `config.seed` gives the draws.
        benchmark: what to beat, over the same bars.
        ledger: file of the trials; None where there is none.
        data_hash: of the data that the agent was trained on.

    Raises:
        ArtifactError: if the ledger is damaged.
    """
    scores, trials = _searched(ledger, data_hash)
    sharpes = scores / np.sqrt(max(len(backtest.returns), 1))
    if trials == 0:
        sharpes, trials = np.array([figures.per_bar_sharpe(backtest.returns)]), 1
    return significance(
        backtest.returns,
        backtest.ts,
        per_year=figures.bars_per_year(backtest.interval.milliseconds),
        trial_sharpes=sharpes,
        trials=trials,
        benchmark=benchmark.returns,
        generator=Generators(backtest.config.seed).numpy("backtest.luck"),
    )


def _searched(path: Path | str | None, data_hash: str | None) -> tuple[Array, int]:
    """Return the scores of a ledger's validations and how many trials there were."""
    if path is None:
        return np.zeros(0), 0
    ledger = TrialLedger(path)
    wanted = data_hash if data_hash is not None and ledger.count(data_hash=data_hash) else None
    return ledger.scores(data_hash=wanted), ledger.count(data_hash=wanted)


def equity_fan(
    returns: Array,
    ts: NDArray[np.int64],
    *,
    generator: np.random.Generator,
    repetitions: int = 1_000,
    block: int | None = None,
) -> Fan:
    """Return quantile bands of equity over resampled paths, at 120 marks or fewer.

    Paths are drawn by the stationary bootstrap of `stats.bootstrap`, so a band says what other
    orders of the same bars would have come to, at each mark for itself: no single path follows a
    band. Needs 100 bars; with fewer the bands are empty and `reason` says so. Arguments are those
    of `bootstrap_intervals`, and the marks `ts`, [T + 1].
    """
    enough = Statement(None, needed=MINIMUM_RESAMPLED, found=returns.size)
    if not enough.enough:
        return Fan(np.zeros(0, dtype=np.int64), np.zeros((len(FAN_LEVELS), 0)), enough.reason)
    places = fan_places(returns.size)
    length = block_length(returns) if block is None else block
    bands = fan_bands(returns, places, generator=generator, repetitions=repetitions, block=length)
    return Fan(ts[places], bands)


def fan_places(bars: int) -> NDArray[np.int64]:
    """Return marks from the first to the last, evenly, 120 at most."""
    return np.unique(np.linspace(0, bars, min(FAN_MARKS, bars + 1)).round().astype(np.int64))


def fan_bands(
    returns: Array,
    places: NDArray[np.int64],
    *,
    generator: np.random.Generator,
    repetitions: int,
    block: int,
    levels: Sequence[float] = FAN_LEVELS,
) -> Array:
    """Return the bands at the given marks, [levels, marks], lowest level first."""
    from arch.bootstrap import StationaryBootstrap  # a second of imports, so not above

    drawn = StationaryBootstrap(block, returns, seed=generator)
    worth = np.empty((repetitions, places.size))
    for number, (sample, _) in enumerate(drawn.bootstrap(repetitions)):
        steps.advanced(number, repetitions, "resamples")
        path = np.concatenate(([1.0], np.cumprod(1.0 + sample[0])))
        worth[number] = path[places]
    bands: Array = np.quantile(worth, levels, axis=0)
    return bands
