"""Figures that a verdict depends on, from the returns of a pooled account and its backtests.

Everything that follows from returns alone is computed here and nowhere else, so that simulated
returns pass through the same code as those of a real validation (`walk_forward.power`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from stormsail.core.generators import Generators
from stormsail.evaluation.robustness.costs import BreakEven
from stormsail.evaluation.robustness.self_tests import SelfTest
from stormsail.evaluation.robustness.significance import Significance, significance
from stormsail.evaluation.stats import figures
from stormsail.evaluation.stats.bootstrap import superiority
from stormsail.evaluation.stats.figures import Array, bars_per_year
from stormsail.evaluation.stats.overfitting import overfitting_statement
from stormsail.evaluation.stats.paired import mean_interval
from stormsail.evaluation.stats.sharpe import effective_trials
from stormsail.evaluation.stats.sharpe_difference import SharpeDifference, compare_sharpe
from stormsail.evaluation.stats.statement import MINIMUM_BARS, Statement, state
from stormsail.evaluation.walk_forward.ledger import EarlierTrials
from stormsail.evaluation.walk_forward.pool import Pooled
from stormsail.evaluation.walk_forward.tried import tried_returns
from stormsail.evaluation.walk_forward.verdict import Evidence, Tail

BENCHMARK = "buy and hold"
COMPARED = (BENCHMARK, "volatility target", "momentum")
"""The simple baselines that a strategy must beat at equal risk."""

BEST_BARS = 5
"""Bars that may not have earned most of the growth."""


@dataclass(frozen=True)
class TrialSummary:
    """How many trials deflate the Sharpe ratio."""

    count: int
    """Of the workspace before, and of this one as many independent ones as its seeds amount to."""
    with_sharpe: int
    sharpe_std: float | None
    """Standard deviation of their Sharpe ratios; None with fewer than two."""
    words: str


class Tested(NamedTuple):
    """Every test of the returns of a pooled account."""

    significance: Significance
    baselines: dict[str, SharpeDifference]
    """Against each simple baseline that was traded."""
    trials: TrialSummary


def account_tests(
    pooled: Pooled,
    baselines: Mapping[str, Array],
    earlier: EarlierTrials,
    *,
    seed: int,
    repetitions: int = 1_000,
) -> Tested:
    """Return the tests of an account.

    What is promoted is no seed but all of them together, so nothing is chosen among them; they
    count as as many trials as they are independent (`effective_trials`), which errs on the safe
    side. The spread of Sharpe ratios is that of the other trials: with its own among them a skilled
    result would raise the benchmark that it is held against, and after a hundred trials of noise
    nothing below nine standard errors would pass. The probability of overfitting among the seeds is
    shown and has no vote: of equally skilled seeds it is a toss of a coin which is best in which
    half. That among the configurations of the workspace is shown beside it and has none either:
    the trials that they were deflate the Sharpe ratio already.

    Args:
        pooled: the account.
        baselines: returns of what was traded over the same bars, by name.
        earlier: trials before.
        seed: of the draws.
        repetitions: resamples of each bootstrap.
    """
    generator = Generators(seed).numpy("validation.luck")
    per_year = bars_per_year(pooled.interval.milliseconds)
    columns, returns = pooled.seed_returns, pooled.returns
    independent = effective_trials(columns)
    sharpes = earlier.sharpes(returns.size)
    tested = significance(
        returns,
        pooled.ts,
        per_year=per_year,
        trial_sharpes=sharpes,
        trials=earlier.count + independent,
        tried=columns if columns.shape[1] > 1 else None,
        generator=generator,
        repetitions=repetitions,
    )
    if earlier.folder is not None:
        tried = tried_returns(earlier.folder, earlier.keys, pooled.ts[1:], returns)
        tested = replace(tested, configurations=overfitting_statement(tried))
    if BENCHMARK in baselines:
        beaten = superiority(
            returns, baselines[BENCHMARK], generator=generator, repetitions=repetitions
        )
        tested = replace(tested, superiority=beaten)
    compared = {
        name: compare_sharpe(
            returns,
            baselines[name],
            per_year=per_year,
            generator=generator,
            repetitions=repetitions - 1,
        )
        for name in COMPARED
        if name in baselines
    }
    seeds = columns.shape[1]
    words = (
        f"{earlier.count} trials of the workspace before this one, and {seeds} seeds of it, which "
        f"count as {independent}; a deviation of Sharpe ratios below {returns.size**-0.5:.3g}, "
        f"what {returns.size} bars can tell, counts as that"
    )
    std = float(sharpes.std(ddof=1)) if sharpes.size > 1 else None
    summary = TrialSummary(earlier.count + independent, int(sharpes.size), std, words)
    return Tested(tested, compared, summary)


@dataclass(frozen=True, eq=False)
class Trading:
    """What the backtests behind an account tell, beside its returns."""

    self_tests: Sequence[SelfTest]
    failed_folds: Sequence[int]
    liquidations: int
    stops: int
    break_even: BreakEven | None
    charged_bp: float | None
    cost_floor_bp: float
    dead_fills: int
    clairvoyant_return: float | None
    """Total return of somebody who knows every bar; None where nobody traded so."""
    tail: Tail
    judged_tail: Tail | None = None


def evidence_of(pooled: Pooled, tested: Tested, trading: Trading) -> Evidence:
    """Return the figures of an account that its verdict depends on."""
    returns, seeds = pooled.returns, pooled.seed_equity
    bars = returns.size
    intervals = tested.significance.intervals
    return Evidence(
        self_tests=trading.self_tests,
        failed_folds=trading.failed_folds,
        fold_returns=pooled.fold_returns,
        seed_returns=[float(total) for total in seeds[-1] / seeds[0] - 1.0],
        total_return=state(lambda: figures.total_return(returns), needed=1, found=bars),
        mean_return=_mean_return(returns, intervals.mean_return),
        liquidations=trading.liquidations,
        stops=trading.stops,
        deflated=tested.significance.deflated,
        baselines=tested.baselines,
        break_even=trading.break_even,
        charged_bp=trading.charged_bp,
        cost_floor_bp=trading.cost_floor_bp,
        tail=trading.tail,
        judged_tail=trading.judged_tail,
        clairvoyant_share=_clairvoyant_share(returns, trading.clairvoyant_return),
        losing_year=_losing_year(intervals.sharpe),
        dead_fills=trading.dead_fills,
        best_bars_share=_best_bars_share(returns),
        end_ms=int(pooled.ts[-1]),
        bar_ms=pooled.interval.milliseconds,
    )


def _mean_return(returns: Array, resampled: Statement) -> Statement:
    """Return the mean with the interval of the bootstrap, or Student's where bars are too few."""
    if resampled.enough or returns.size < MINIMUM_BARS:
        return resampled
    low, high = mean_interval(returns)
    return Statement(float(returns.mean()), low, high, needed=MINIMUM_BARS, found=returns.size)


def _log_growth(returns: Array) -> float:
    worth = float(np.prod(1.0 + returns))
    return math.log(worth) if worth > 0.0 else -math.inf


def _clairvoyant_share(returns: Array, best: float | None) -> Statement:
    r"""Return :math:`\log(1 + R) / \log(1 + R^*)`: the share of the best growth there was."""
    if best is None or best <= 0.0:
        why = "it was not measured" if best is None else "knowing every bar would earn nothing"
        return Statement(None, why=why)
    return state(
        lambda: max(_log_growth(returns), 0.0) / math.log1p(best),
        needed=1,
        found=returns.size,
    )


def _losing_year(sharpe: Statement) -> Statement:
    r"""Return :math:`\Phi(-SR_{low})`: how likely a year ends below its start, if it is normal."""
    if sharpe.low is None:
        return replace(sharpe, value=None, low=None, high=None)
    value = float(ndtr(-sharpe.low))
    return Statement(value, needed=sharpe.needed, found=sharpe.found)


def _best_bars_share(returns: Array) -> Statement:
    """Return the share of the log growth that the five best bars earned."""
    bars, total = returns.size, _log_growth(returns)
    if bars < MINIMUM_BARS:
        return Statement(None, needed=MINIMUM_BARS, found=bars)
    if not total > 0.0:
        return Statement(None, needed=MINIMUM_BARS, found=bars, why="nothing was earned")
    best = float(np.log1p(np.sort(returns)[-BEST_BARS:]).sum())
    return Statement(best / total, needed=MINIMUM_BARS, found=bars)
