"""How much of a result is luck, as plain data, with the fan of what else could have happened."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stormsail.core.errors import ShapeError
from stormsail.core.files.documents import JsonValue, plain
from stormsail.core.generators import Generators
from stormsail.evaluation.engine.result import Backtest
from stormsail.evaluation.stats import figures
from stormsail.evaluation.stats.bootstrap import MINIMUM_RESAMPLED, block_length
from stormsail.evaluation.stats.figures import Array
from stormsail.evaluation.stats.sharpe import Luck, judge_luck
from stormsail.evaluation.stats.statement import Statement
from stormsail.evaluation.stats.trials import TrialLedger

FAN_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Shares of resampled paths that lie below each band of the fan."""

FAN_MARKS = 120
"""Marks of the fan, at most."""


def luck_document(
    returns: ArrayLike,
    ts: ArrayLike,
    *,
    per_year: float,
    trial_sharpes: ArrayLike,
    trials: int | None = None,
    tried: ArrayLike | None = None,
    benchmark: ArrayLike | None = None,
    generator: np.random.Generator,
    repetitions: int = 1_000,
) -> JsonValue:
    """Return everything that `judge_luck` says, and a fan, as plain data.

    Args:
        returns: [T], simple return of each bar.
        ts: [T + 1], UTC milliseconds of the marks, the first before the first return.
        per_year: bars in a year.
        trial_sharpes: per-bar Sharpe ratio of every trial, NaN for those that failed.
        trials: number of trials, where more are known than have a Sharpe ratio.
        tried: [T, S], returns of everything that was tried.
        benchmark: [T], returns of what to beat.
        generator: where the draws come from.
        repetitions: resamples of each bootstrap.

    Raises:
        ShapeError: if there is not one mark more than returns.
    """
    returns = figures.as_series(returns, name="returns")
    marks = np.asarray(ts, dtype=np.int64)
    if marks.shape != (returns.size + 1,):
        raise ShapeError(
            wrong=f"`ts` must have the shape [{returns.size + 1}], one mark more than returns",
            found=str(list(marks.shape)),
            remedy="Pass the times of the equity that the returns are of.",
        )
    luck = judge_luck(
        returns,
        trial_sharpes=trial_sharpes,
        per_year=per_year,
        generator=generator,
        trials=trials,
        tried=tried,
        benchmark=benchmark,
        repetitions=repetitions,
    )
    intervals = luck.intervals
    told: dict[str, JsonValue] = {
        "intervals": {
            "mean_return": _told(intervals.mean_return),
            "sharpe": _told(intervals.sharpe),
            "cvar": _told(intervals.cvar),
            "drawdown": _told(intervals.drawdown),
            "block": intervals.block,
        },
        "probabilistic": _told(luck.probabilistic),
        "deflated": _told(luck.deflated),
        "expected_maximum": _told(luck.expected_maximum),
        "track_record": _told(luck.track_record),
        "overfitting": _told(luck.overfitting),
        "superiority": _told(luck.superiority),
        "trials": luck.trials,
        "summary": plain(_sentences(luck)),
        "fan": fan_document(
            returns, marks, generator=generator, repetitions=repetitions, block=intervals.block
        ),
    }
    return told


def luck_of(
    backtest: Backtest,
    *,
    benchmark: Backtest,
    ledger: Path | str | None = None,
    data_hash: str | None = None,
) -> JsonValue:
    """Return how much of one backtest is luck, with the search that a trial ledger knows of.

    Trials are those of the ledger on the agent's data, or all of them where it knows none on that
    data: too many trials make the answer too low, never too high. Without any, the backtest is the
    only one.

    Args:
        backtest: what is judged; its `config.seed` gives the draws.
        benchmark: what to beat, over the same bars.
        ledger: file of the trials; None where there is none.
        data_hash: of the data that the agent was trained on.

    Raises:
        ArtifactError: if the ledger is damaged.
    """
    sharpes, trials = _searched(ledger, data_hash)
    if trials == 0:
        sharpes, trials = np.array([figures.per_bar_sharpe(backtest.returns)]), 1
    return luck_document(
        backtest.returns,
        backtest.ts,
        per_year=figures.bars_per_year(backtest.interval.milliseconds),
        trial_sharpes=sharpes,
        trials=trials,
        benchmark=benchmark.returns,
        generator=Generators(backtest.config.seed).numpy("backtest.luck"),
    )


def _searched(ledger: Path | str | None, data_hash: str | None) -> tuple[Array, int]:
    """Return the Sharpe ratios of a ledger's trials and how many trials there were."""
    if ledger is None:
        return np.zeros(0), 0
    book = TrialLedger(ledger)
    wanted = data_hash if data_hash is not None and book.count(data_hash=data_hash) else None
    return book.sharpes(data_hash=wanted), book.count(data_hash=wanted)


def fan_document(
    returns: Array,
    ts: NDArray[np.int64],
    *,
    generator: np.random.Generator,
    repetitions: int = 1_000,
    block: int | None = None,
) -> dict[str, JsonValue]:
    """Return quantile bands of equity over resampled paths, at 120 marks or fewer.

    Equity is a multiple of that at the start. Paths are drawn by the stationary bootstrap of
    `resampling`, so a band says what other orders of the same bars would have come to, at each mark
    for itself: no single path follows a band. Needs 100 bars; with fewer the lists are empty and
    `reason` says so.

    Args:
        returns: [T].
        ts: [T + 1] marks.
        generator: where the draws come from.
        repetitions: how many paths are drawn.
        block: mean block length in bars; None lets `block_length` choose.
    """
    enough = Statement(None, needed=MINIMUM_RESAMPLED, found=returns.size)
    places = fan_places(returns.size) if enough.enough else np.zeros(0, dtype=np.int64)
    bands: list[JsonValue] = [[] for _ in FAN_LEVELS]
    if enough.enough:
        length = block_length(returns) if block is None else block
        found = fan_bands(
            returns, places, generator=generator, repetitions=repetitions, block=length
        )
        bands = [plain(band.tolist()) for band in found]
    return {
        "ts": [int(one) for one in ts[places]],
        "levels": list(FAN_LEVELS),
        "equity": bands,
        "reason": "" if enough.enough else enough.reason,
    }


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
        path = np.concatenate(([1.0], np.cumprod(1.0 + sample[0])))
        worth[number] = path[places]
    bands: Array = np.quantile(worth, levels, axis=0)
    return bands


def _sentences(luck: Luck) -> list[str]:
    """Return what a reader wants first."""
    trials = f"after {luck.trials} trial{'' if luck.trials == 1 else 's'}"
    against = [] if luck.superiority is None else [f"beats the benchmark: p = {luck.superiority}"]
    return [
        f"mean return of a bar: {luck.intervals.mean_return}",
        f"probability of a Sharpe ratio above 0 {trials}: {luck.deflated}",
        *against,
    ]


def _told(stated: Statement | None) -> JsonValue:
    return None if stated is None else plain(stated.document())
