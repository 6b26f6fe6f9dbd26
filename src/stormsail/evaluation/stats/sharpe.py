"""Probabilistic and deflated Sharpe ratio: the error of a Sharpe ratio, and the price of a search.

T bars. Every Sharpe ratio here is that of one bar (`figures.per_bar_sharpe`): annualised ones do
not fit the formulas. The bootstrap and the test against a benchmark are in `bootstrap`, the
cross-validation in `overfitting`; `robustness.significance` computes them all.
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri  # distribution function of the normal, and its inverse

from stormsail.core.errors import RangeError
from stormsail.evaluation.stats import figures
from stormsail.evaluation.stats.figures import Array


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
    if trials == 1:
        return 0.0
    upper = -ndtri(1.0 / trials)
    further = -ndtri(1.0 / (trials * math.e))
    return float(std * ((1.0 - np.euler_gamma) * upper + np.euler_gamma * further))


def deflated_sharpe(
    returns: ArrayLike, *, trial_sharpes: ArrayLike, trials: int | None = None
) -> float:
    r"""Return the probability that the true Sharpe ratio is above 0, after the search for it.

    .. math::
        DSR = PSR\big( SR^* = SR_0(N, \sigma) \big)

    Bailey & López de Prado 2014, The Deflated Sharpe Ratio: the benchmark is what the best of N
    trials without skill would show, sigma the deviation (N - 1) of the trials' Sharpe ratios.

    Deviation: a trial that failed has no Sharpe ratio but was a trial. NaN among `trial_sharpes`
    counts towards N and not towards sigma; `trials` gives N outright. Trials that resemble each
    other are not independent, and counting each makes the answer too low, never too high.

    Args:
        returns: [T], of the trial that was chosen.
        trial_sharpes: per-bar Sharpe ratio of every trial, the chosen one included.
        trials: N, at least the number of `trial_sharpes`.

    Returns:
        A probability; NaN where the returns have no spread, or where several trials left fewer
        than two Sharpe ratios to take a deviation of.

    Raises:
        RangeError: if there is no trial, or `trials` is below the number of Sharpe ratios.
    """
    count, known = counted_trials(trial_sharpes, trials)
    if count > 1 and known.size < 2:
        return math.nan
    std = float(known.std(ddof=1)) if count > 1 else 0.0
    return probabilistic_sharpe(returns, benchmark=expected_maximum_sharpe(count, std=std))


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
