"""Probabilistic and deflated Sharpe ratio: the error of a Sharpe ratio, and the price of a search.

T bars. Every Sharpe ratio here is that of one bar (`figures.per_bar_sharpe`): annualised ones do
not fit the formulas. The bootstrap and the test against a benchmark are in `bootstrap`, the
cross-validation in `overfitting`; `robustness.significance` computes them all.
"""

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri  # distribution function of the normal, and its inverse

from stormsail.core.errors import ChoiceError, RangeError
from stormsail.evaluation.stats import figures
from stormsail.evaluation.stats.figures import Array

Form = Literal["monotone", "paper"]

_DRAWS, _DRAWN_FROM = 8_192, 20_140_731
_JITTER = 1e-6  # what is added to the variance of each trial: copies have no matrix to invert
_SLACK = 0.01


def sharpe_error(sharpe: float, *, bars: int, skew: float, kurtosis: float) -> float:
    r"""Return the standard error of a per-bar Sharpe ratio of independent returns of any shape.

    .. math::
        \hat\sigma = \sqrt{\frac{1 - \gamma_3 SR + \frac{\gamma_4 - 1}{4} SR^2}{T - 1}}

    Bailey & López de Prado 2012, The Sharpe Ratio Efficient Frontier. kurtosis is 3 for a normal
    distribution, not 0. NaN where the root has no real value, which no sample has whose moments are
    its own.
    """
    variance = (1.0 - skew * sharpe + (kurtosis - 1.0) / 4.0 * sharpe**2) / (bars - 1)
    return math.sqrt(variance) if variance > 0.0 else math.nan


def probabilistic_sharpe(returns: ArrayLike, *, benchmark: float = 0.0) -> float:
    r"""Return the probability that the true per-bar Sharpe ratio is above `benchmark`.

    .. math::
        PSR = \Phi\Big( \frac{\widehat{SR} - SR^*}{\hat\sigma} \Big)

    with the standard error of `sharpe_error`. Bailey & López de Prado 2012, The Sharpe Ratio
    Efficient Frontier. The sample Sharpe ratio has T - 1 degrees of freedom, skew and kurtosis are
    plain moment ratios, as in skfolio. purgedcv divides by the deviation with T and corrects the
    moments instead: at 1,000 bars that moves the fourth digit.

    Assumes that bars are independent. Where they are not, believe the bootstrap instead.

    Args:
        returns: [T].
        benchmark: per-bar Sharpe ratio to beat.

    Returns:
        A probability; NaN where the returns have no spread.
    """
    returns = figures.as_series(returns, name="returns")
    ratio = float(figures.per_bar_sharpe(returns))
    if math.isnan(ratio):
        return math.nan
    error = sharpe_error(
        ratio,
        bars=returns.size,
        skew=figures.skew(returns),
        kurtosis=figures.kurtosis(returns),
    )
    return float(ndtr((ratio - benchmark) / error))


def expected_maximum_sharpe(trials: int, *, std: float) -> float:
    r"""Return the mean of the best of `trials` Sharpe ratios whose true value is 0.

    .. math::
        SR_0 = \sigma \Big[ (1 - \gamma) \Phi^{-1}\Big(1 - \frac1N\Big)
               + \gamma\, \Phi^{-1}\Big(1 - \frac{1}{N e}\Big) \Big]

    with gamma the Euler-Mascheroni constant: an approximation by extreme values for independent
    normal draws. Bailey & López de Prado 2014, The Deflated Sharpe Ratio. 0 for one trial, where
    nothing was chosen.

    Args:
        trials: N, at least 1.
        std: standard deviation of the trials' per-bar Sharpe ratios.

    Raises:
        RangeError: if there is no trial, or the deviation is not a finite number of at least 0.
    """
    if trials < 1 or not 0.0 <= std < math.inf:
        raise RangeError(
            wrong="there must be at least 1 trial, and a finite deviation of at least 0",
            found=f"{trials} trials and the deviation {std}",
            remedy="Count the result itself as a trial.",
        )
    return float(std * _standard_maximum(np.array(trials)))


def _standard_maximum(trials: NDArray[np.int64]) -> Array:
    """Return the expected maximum of so many standard normal draws; 0 for one."""
    upper = -ndtri(1.0 / np.maximum(trials, 2))
    further = -ndtri(1.0 / (trials * math.e))
    best = (1.0 - np.euler_gamma) * upper + np.euler_gamma * further
    return np.asarray(np.where(trials > 1, best, 0.0))


def deflated_sharpe(
    returns: ArrayLike,
    *,
    trial_sharpes: ArrayLike,
    trials: int | None = None,
    form: Form = "monotone",
) -> float:
    r"""Return the probability that the true Sharpe ratio is above 0, after the search for it.

    .. math::
        DSR = PSR\big( SR^* \big)

    The benchmark is what the best of the trials would show without any skill. With `paper` it is
    that of Bailey & López de Prado 2014, The Deflated Sharpe Ratio, J. Portfolio Management
    40(5):94-107: SR_0(N, sigma) with sigma the deviation (N - 1) of the trials' Sharpe ratios. It
    falls where trials are added that resemble one another, so idle trials raise the answer: the
    best of 30 strategies of noise had .515, and .918 after 1,000 idle ones. With `monotone`, the
    default, it is `trials_benchmark`, ours, which no further trial lowers.

    A trial that failed has no Sharpe ratio but was a trial. NaN among `trial_sharpes` counts
    towards N and not towards sigma; `trials` gives N outright. Trials that resemble each other are
    not independent, and counting each makes the answer too low, never too high.

    Args:
        returns: [T], of the trial that was chosen.
        trial_sharpes: per-bar Sharpe ratio of every trial, the chosen one included.
        trials: N, at least the number of `trial_sharpes`.
        form: of the benchmark.

    Returns:
        A probability; NaN where the returns have no spread, and with `paper` where several trials
        left fewer than two Sharpe ratios to take a deviation of.

    Raises:
        RangeError: if there is no trial, or `trials` is below the number of Sharpe ratios.
        ChoiceError: if there is no such form.
    """
    count, known = counted_trials(trial_sharpes, trials)
    if form == "monotone":
        bars = figures.as_series(returns, name="returns").size
        benchmark = trials_benchmark(known, trials=count, bars=bars)
    elif form != "paper":
        raise ChoiceError(
            wrong="`form` must be `monotone` or `paper`",
            found=repr(form),
            remedy="Leave it out for the form that no further trial can raise.",
        )
    elif count > 1 and known.size < 2:
        return math.nan
    else:
        std = float(known.std(ddof=1)) if count > 1 else 0.0
        benchmark = expected_maximum_sharpe(count, std=std)
    return probabilistic_sharpe(returns, benchmark=benchmark)


def trials_benchmark(trial_sharpes: ArrayLike, *, trials: int, bars: int) -> float:
    r"""Return the largest expected maximum over all subsets of the trials, per bar.

    .. math::
        SR^* = \max_{A} \; SR_0\Big( |A| + u,\; \max\big( s_A,\, T^{-1/2} \big) \Big)

    A runs over the subsets of the n known Sharpe ratios, s_A is their deviation (|A| - 1; 0 for one
    or none), u = N - n counts the trials without one, SR_0 is `expected_maximum_sharpe`. Ours, for
    two reasons. A Sharpe ratio over T bars cannot be known better than 1/sqrt(T), so seeds that
    agree do not make noise small. And the subsets of fewer trials are subsets of more, so no
    further trial, whatever its Sharpe ratio, lowers the maximum: it is the least such benchmark
    that is nowhere below the paper's. What it costs: for many trials that are normal themselves it
    is about 1.6 times the paper's (1,000 of them: 5.3 deviations instead of 3.3), because their two
    tails alone are a search with a larger spread.

    How the worst subset is found. Let B be A without one member x, with mean c. The sum of squares
    of A about its own mean is that of B plus (1 - 1/|A|)(x - c)²: it grows with the distance of x
    from c. If some x in A lies between two trials that are not, one of these is as far from c or
    farther, and takes its place without loss. So among the worst subsets of each size there is one
    that consists of the lowest and the highest trials, and n²/2 of those are tried.

    Args:
        trial_sharpes: per-bar Sharpe ratios that are known, [n]; any order.
        trials: N, at least 1 and at least n.
        bars: T, of the trial that is judged.
    """
    ordered = np.sort(np.asarray(trial_sharpes, dtype=np.float64))
    floor = 1.0 / math.sqrt(bars)
    least = expected_maximum_sharpe(trials, std=floor)
    unknown = trials - ordered.size
    sizes = np.arange(2, ordered.size + 1)
    if not sizes.size:
        return least
    std, lowest = _widest(ordered)
    value = np.maximum(std, floor) * _standard_maximum(sizes + unknown)
    near = np.flatnonzero(value >= value.max() * (1.0 - 1e-9))
    # once more without rounding of sums, so that equal subsets give equal numbers
    exact = [
        expected_maximum_sharpe(
            int(sizes[place]) + unknown,
            std=max(_deviation(ordered, int(sizes[place]), int(lowest[place])), floor),
        )
        for place in near
    ]
    return max(least, *exact)


def _widest(ordered: Array) -> tuple[Array, NDArray[np.int64]]:
    """Return the largest deviation of any subset of 2, 3, ... n, and how many lowest it takes."""
    centred = ordered - ordered.mean()
    below = np.concatenate(([0.0], centred.cumsum()))
    below_squares = np.concatenate(([0.0], (centred**2).cumsum()))
    above = np.concatenate(([0.0], centred[::-1].cumsum()))
    above_squares = np.concatenate(([0.0], (centred[::-1] ** 2).cumsum()))
    count = ordered.size
    std, lowest = np.empty(count - 1), np.empty(count - 1, dtype=np.int64)
    for place, size in enumerate(range(2, count + 1)):
        low = slice(0, size + 1)
        total = below[low] + above[size::-1]
        squares = below_squares[low] + above_squares[size::-1] - total**2 / size
        lowest[place] = squares.argmax()
        std[place] = math.sqrt(max(float(squares.max()), 0.0) / (size - 1))
    return std, lowest


def _deviation(ordered: Array, size: int, lowest: int) -> float:
    """Return the deviation of so many lowest trials and the rest of the size from the highest."""
    chosen = np.concatenate((ordered[:lowest], ordered[ordered.size - (size - lowest) :]))
    return float(chosen.std(ddof=1))


def effective_trials(returns: ArrayLike) -> int:
    r"""Return how many independent trials some correlated ones amount to.

    .. math::
        K = \min\Big\{ k : E \max_{i \le k} \epsilon_i \ge E \max_{i \le S} z_i \Big\},
        \qquad z \sim N(0, R), \; \epsilon \sim N(0, I)

    with R the correlation of the columns. Ours: what a search gains from its trials is their
    expected maximum, so trials are as many as have that of independent ones; copies count as 1, S
    independent columns as S. A further column never lowers a maximum, so the number never falls.
    Counting clusters above a threshold instead lets a search through: of 1,000 trials of noise that
    are correlated .9 with the first, which would be one cluster, the best has a t-statistic above
    1.645 in a third of cases. Both means are those of the same 8,192 draws, and a hundredth of a
    deviation counts as nothing.

    Args:
        returns: [T, S], one column for each trial, in the order in which they were tried; one
            without any spread counts as independent of all others.
    """
    matrix = figures.as_series(returns, name="returns", columns=True)
    count = 1 if matrix.ndim == 1 else matrix.shape[1]
    if count == 1:
        return 1
    flat = np.ptp(matrix, axis=0) == 0.0
    spread = np.where(flat, 1.0, matrix.std(axis=0))
    scores = (matrix - matrix.mean(axis=0)) / spread
    correlation = scores.T @ scores / len(scores)
    np.fill_diagonal(correlation, 1.0 + _JITTER)
    # row by row, so that the first draws stay the same when a column is added
    lower = np.linalg.cholesky(correlation)
    drawn = np.random.Generator(np.random.PCG64(_DRAWN_FROM)).standard_normal((count, _DRAWS))
    best = float((lower @ drawn).max(axis=0).mean())
    independent = np.maximum.accumulate(drawn, axis=0).mean(axis=1)
    enough = np.flatnonzero(independent >= best - _SLACK)
    return int(enough[0]) + 1 if enough.size else count


def minimum_track_record(
    returns: ArrayLike, *, benchmark: float = 0.0, confidence: float = 0.95
) -> float:
    r"""Return how many bars it takes until a Sharpe ratio like this one is significant.

    .. math::
        T^* = 1 + \Big[ 1 - \gamma_3 SR + \frac{\gamma_4 - 1}{4} SR^2 \Big]
              \Big( \frac{\Phi^{-1}(c)}{SR - SR^*} \Big)^2

    The length at which `probabilistic_sharpe` reaches the confidence c if the moments stay; Bailey
    & López de Prado 2012, The Sharpe Ratio Efficient Frontier. Rounded up to whole bars; infinite
    where the ratio does not exceed the benchmark, NaN where the returns have no spread.
    """
    returns = figures.as_series(returns, name="returns")
    ratio = float(figures.per_bar_sharpe(returns))
    if math.isnan(ratio):
        return math.nan
    if ratio <= benchmark:
        return math.inf
    unit = sharpe_error(
        ratio, bars=2, skew=figures.skew(returns), kurtosis=figures.kurtosis(returns)
    )
    exact = 1.0 + (unit * float(ndtri(confidence)) / (ratio - benchmark)) ** 2
    return float(math.ceil(exact))


def counted_trials(trial_sharpes: ArrayLike, trials: int | None) -> tuple[int, Array]:
    """Return the number of trials and the Sharpe ratios of those that have one.

    Raises:
        RangeError: if there is no trial, or `trials` is below the number of Sharpe ratios.
    """
    sharpes = np.asarray(trial_sharpes, dtype=np.float64).ravel()
    count = sharpes.size if trials is None else trials
    if count < max(1, sharpes.size):
        raise RangeError(
            wrong="there must be at least 1 trial, and no fewer than there are Sharpe ratios",
            found=f"{count} trials and {sharpes.size} Sharpe ratios",
            remedy="Count every trial, the failed ones and the chosen one included.",
        )
    known = sharpes[~np.isnan(sharpes)]
    return count, figures.as_series(known, name="trial_sharpes")
