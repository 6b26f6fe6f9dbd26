"""Power of a validation, told before anything is trained: which true Sharpe ratio it would find.

Folds, seeds, earlier trials and what the simple baselines earned over the very bars are known
beforehand. Only the strategy's own return is not: its Sharpe ratio over T bars is normal around the
true one, with the deviation 1/sqrt(T) where bars are independent and more where they are not.
So the chance of a promotion follows for any true Sharpe ratio, and so does the one that is found
with 80 % probability.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtrit

from stormsail.core.files.documents import JsonValue, Record
from stormsail.core.generators import Generators
from stormsail.evaluation.stats import figures
from stormsail.evaluation.stats.bootstrap import MINIMUM_RESAMPLED
from stormsail.evaluation.stats.figures import Array
from stormsail.evaluation.stats.sharpe import sharpe_error, trials_benchmark
from stormsail.evaluation.stats.sharpe_difference import bars_of_block, influence, long_run_error
from stormsail.evaluation.stats.statement import needed_for_tail
from stormsail.evaluation.walk_forward.config import VerdictRules
from stormsail.evaluation.walk_forward.ledger import EarlierTrials

SURE = 0.8
"""Probability with which the Sharpe ratio that a plan names is found."""

_AIMED = 0.92
"""Probability that the approximation is solved for: tests by resampling and dependence that is
estimated cost some of it, the more the fewer bars there are. Solved for 86 %, 176 of 213 simulated
validations of 1,095 and 1,825 bars were promoted, and 75 of 107 of 365."""

_DRAWS = 20_000
_SOMETIMES = 0.05  # share of results that would have to be explained from which a plan says so
_MOST = 400.0  # root of bars times Sharpe ratio beyond which nothing is searched
_INTERVAL = 0.975  # level at which the lower end of the mean return's interval lies


@dataclass(frozen=True)
class Power(Record):
    """What a validation would find.

    Attributes:
        bars: that are traded out of sample.
        years: the same in years.
        folds: number of them.
        seeds: number of them.
        trials: that deflate the Sharpe ratio, the seeds as if they were independent.
        sharpe: annual Sharpe ratio that is found with 80 % probability; None where no rule can be
            decided or none is large enough.
        needed: annual Sharpe ratio that must be measured, by rule.
        suspicious: whether so high a Sharpe ratio would have to be explained in writing.
        undecided: what these bars cannot decide, in words.
    """

    bars: int
    years: float
    folds: int
    seeds: int
    trials: int
    sharpe: float | None
    needed: Mapping[str, float]
    suspicious: bool
    undecided: tuple[str, ...]

    @property
    def summary(self) -> list[str]:
        """What a reader wants first, in sentences."""
        result = (
            "no true Sharpe ratio would be found"
            if self.sharpe is None
            else f"a true Sharpe ratio of {self.sharpe:.2f} a year would be promoted with "
            f"{SURE:.0%} probability"
        )
        lines = [
            f"{self.bars:,} bars to trade ({self.years:.2f} years) in {self.folds} folds, "
            f"{self.seeds} seeds, {self.trials} trials: {result}",
            *(
                f"{name}: at least {ratio:.2f} a year must be measured"
                for name, ratio in self.needed.items()
            ),
        ]
        if self.suspicious:
            lines.append("losing year: a result that high must be explained in writing")
        return [*lines, *(f"cannot be decided: {words}" for words in self.undecided)]

    def document(self) -> dict[str, JsonValue]:
        """Return it as JSON."""
        return {**super().document(), "needed": dict(self.needed), "summary": list(self.summary)}


def plan_power(
    fold_bars: Sequence[int],
    *,
    per_year: float,
    seeds: int,
    earlier: EarlierTrials,
    baselines: Mapping[str, Array],
    rules: VerdictRules,
    alpha: float = 0.05,
    tail_horizon: int | None = None,
) -> Power:
    r"""Return the power of a validation.

    In units of 1/sqrt(T), with x the measured and s the true Sharpe ratio over all T bars, a
    promotion takes

    .. math::
        x \ge \max(x_1, x_2, x_3), \qquad \#\{k : x_k > 0\} > qK, \qquad
        x_k \sim N\big(s \sqrt{T_k / T},\, \kappa^2\big), \quad x = \sum_k \sqrt{T_k / T}\, x_k

    x_1 solves (x - SR*) / error = z_{.95} with `trials_benchmark` SR*; x_2 = kappa z_{.975} is
    the lower end of the mean's interval; x_3 = max_b \hat x_b + kappa t_{.95} \sqrt 2 is the test
    against each baseline b, whose ratio over these bars is known, with as many degrees of
    freedom as the bootstrap has blocks, less 1; kappa is by how much serial
    dependence widens the error of the most dependent baseline's ratio. Ours. Assumed: a strategy
    that depends on its past no more than that, is uncorrelated with the baselines, and seeds that
    agree. Costs, self-tests and the rules against what is too good are taken to hold.

    Args:
        fold_bars: bars that each fold trades.
        per_year: bars in a year.
        seeds: how many; each counts as a trial of its own here.
        earlier: trials before.
        baselines: returns over the bars of all folds, by name.
        rules: of the verdict.
        alpha: share of worst outcomes.
        tail_horizon: bars of a window of the critic; None where it is not known.
    """
    bars = sum(fold_bars)
    trials = earlier.count + seeds
    root = math.sqrt(max(bars, 1))
    wider = max([1.0, *(_dependence(returns) for returns in baselines.values())])
    thresholds = {
        "deflated Sharpe": _deflated(earlier, trials, bars, rules.deflated_sharpe),
        "mean return": wider * float(ndtri(_INTERVAL)),
        **{
            f"better than {name}": _beaten(returns, wider, rules.superiority_p)
            for name, returns in baselines.items()
        },
    }
    undecided = _undecided(fold_bars, baselines, alpha, tail_horizon)
    shares = np.sqrt(np.array(fold_bars, dtype=np.float64) / max(bars, 1))
    drawn = Generators(0).numpy("validation.power").standard_normal((_DRAWS, len(fold_bars)))
    drawn *= wider
    most = int(rules.earning_share * len(fold_bars)) + 1
    bar = max(thresholds.values())

    year = math.sqrt(per_year) / root
    absurd = wider * float(ndtri(_INTERVAL)) - float(ndtri(rules.losing_year)) / year

    def promoted(score: float, at_most: float = math.inf) -> float:
        folds = drawn + score * shares
        measured = folds @ shares
        earning = np.count_nonzero(folds > 0.0, axis=1) >= most
        return float(np.mean((measured >= bar) & (measured <= at_most) & earning))

    smallest = _smallest(lambda score: promoted(score) >= _AIMED)
    suspicious = (
        smallest is not None and promoted(smallest) - promoted(smallest, absurd) > _SOMETIMES
    )
    decidable = bars >= MINIMUM_RESAMPLED and bool(baselines)
    return Power(
        bars=bars,
        years=bars / per_year,
        folds=len(fold_bars),
        seeds=seeds,
        trials=trials,
        sharpe=None if smallest is None or not decidable else smallest * year,
        needed={name: score * year for name, score in thresholds.items()},
        suspicious=suspicious,
        undecided=undecided,
    )


def _deflated(earlier: EarlierTrials, trials: int, bars: int, sure: float) -> float:
    """Return the smallest score whose deflated probability suffices."""
    root, z = math.sqrt(max(bars, 2)), float(ndtri(sure))
    benchmark = trials_benchmark(earlier.sharpes(bars), trials=trials, bars=bars)

    def enough(score: float) -> bool:
        error = sharpe_error(score / root, bars=bars, skew=0.0, kurtosis=3.0)
        return score / root - benchmark >= z * error

    smallest = _smallest(enough)
    return math.inf if smallest is None else smallest


def _beaten(returns: Array, wider: float, level: float) -> float:
    ratio = float(figures.per_bar_sharpe(returns))
    own = 0.0 if math.isnan(ratio) else ratio * math.sqrt(returns.size)
    return own - math.sqrt(2.0) * wider * float(stdtrit(_blocks(returns) - 1, level))


def _blocks(returns: Array) -> int:
    """Return the blocks of the bootstrap that a difference to these returns is tested with."""
    if returns.size < MINIMUM_RESAMPLED:
        return returns.size
    return returns.size // bars_of_block(influence(returns))


def _dependence(returns: Array) -> float:
    """Return the error of a Sharpe ratio over what it would be for independent bars."""
    if returns.size < MINIMUM_RESAMPLED or np.ptp(returns) == 0.0:
        return 1.0
    moved = influence(returns)
    return long_run_error(moved) * math.sqrt(returns.size) / float(moved.std())


def _smallest(enough: Callable[[float], bool]) -> float | None:
    """Return the smallest score for which a rising condition is true, to a thousandth."""
    low, high = 0.0, 1.0
    while not enough(high):
        low, high = high, 2.0 * high
        if high > _MOST:
            return None
    while high - low > 1e-3:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _undecided(
    fold_bars: Sequence[int],
    baselines: Mapping[str, Array],
    alpha: float,
    tail_horizon: int | None,
) -> tuple[str, ...]:
    words = []
    bars, needed = sum(fold_bars), needed_for_tail(alpha)
    if bars < MINIMUM_RESAMPLED:
        words.append(f"mean return and baselines: {bars} of {MINIMUM_RESAMPLED} bars")
    if not baselines:
        words.append("better than the baselines: they are not traded")
    if tail_horizon is not None:
        windows = sum(count // tail_horizon for count in fold_bars)
        if windows < needed:
            words.append(
                f"tail over {tail_horizon} bars: {windows} of {needed} windows, a condition "
                "beside the verdict"
            )
    return tuple(words)
