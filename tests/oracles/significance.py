"""Tests of significance in slow loops from the papers.

Bailey & López de Prado 2012 (The Sharpe Ratio Efficient Frontier) and 2014 (The Deflated Sharpe
Ratio); Bailey, Borwein, López de Prado & Zhu (The Probability of Backtest Overfitting). Every
Sharpe ratio is that of one bar, never annualised.
"""

import math
from fractions import Fraction
from itertools import combinations
from statistics import NormalDist

NORMAL = NormalDist()
EULER_MASCHERONI = 0.57721566490153286


def moments(returns):
    """Return count, mean, deviation with n - 1, skew and (not excess) kurtosis with n."""
    n = len(returns)
    mean = math.fsum(returns) / n
    second = math.fsum((x - mean) ** 2 for x in returns)
    third = math.fsum((x - mean) ** 3 for x in returns) / n
    fourth = math.fsum((x - mean) ** 4 for x in returns) / n
    spread = second / n
    return n, mean, math.sqrt(second / (n - 1)), third / spread**1.5, fourth / spread**2


def probabilistic_sharpe(returns, benchmark):
    """P(true Sharpe ratio > benchmark): normal around the estimate, with its own error."""
    n, mean, std, skew, kurtosis = moments(returns)
    sharpe = mean / std
    variance = (1.0 - skew * sharpe + (kurtosis - 1.0) / 4.0 * sharpe**2) / (n - 1)
    return NORMAL.cdf((sharpe - benchmark) / math.sqrt(variance))


def expected_maximum(trials, std):
    """Mean of the largest of `trials` draws from N(0, std²), by the extreme-value approximation."""
    if trials == 1:
        return 0.0
    upper = NORMAL.inv_cdf(1.0 - 1.0 / trials)
    further = NORMAL.inv_cdf(1.0 - 1.0 / (trials * math.e))
    return std * ((1.0 - EULER_MASCHERONI) * upper + EULER_MASCHERONI * further)


def deflated_sharpe(returns, trial_sharpes):
    """P(true Sharpe ratio > 0) after the search over all these trials."""
    n = len(trial_sharpes)
    mean = math.fsum(trial_sharpes) / n
    std = 0.0
    if n > 1:
        std = math.sqrt(math.fsum((x - mean) ** 2 for x in trial_sharpes) / (n - 1))
    return probabilistic_sharpe(returns, expected_maximum(n, std))


def minimum_track_record(returns, benchmark, confidence):
    """The number of bars at which the probabilistic Sharpe ratio reaches the confidence.

    Searched for, not solved for: the smallest whole number at which the z-score is large enough.
    """
    _, mean, std, skew, kurtosis = moments(returns)
    sharpe = mean / std
    shape = 1.0 - skew * sharpe + (kurtosis - 1.0) / 4.0 * sharpe**2
    needed = NORMAL.inv_cdf(confidence)
    bars = 1
    while (sharpe - benchmark) * math.sqrt(bars - 1) / math.sqrt(shape) < needed:
        bars += 1
    return bars


def sharpe(values):
    """Mean over deviation (n - 1); 0 where there is no spread."""
    if max(values) == min(values):
        return 0.0
    n = len(values)
    mean = math.fsum(values) / n
    return mean / math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (n - 1))


def block_bounds(bars, blocks):
    """Contiguous blocks, the first ones a bar longer where they do not divide the bars."""
    size, rest = divmod(bars, blocks)
    bounds, at = [], 0
    for k in range(blocks):
        end = at + size + (1 if k < rest else 0)
        bounds.append((at, end))
        at = end
    return bounds


def sharpe_rank(values):
    """A rational number that orders as the Sharpe ratio does: its square, with its sign.

    Exact, so that ratios that are equal on paper are equal here; square roots would tell them apart
    by rounding.
    """
    exact = [Fraction(value) for value in values]
    mean = sum(exact) / len(exact)
    spread = sum((value - mean) ** 2 for value in exact)
    return mean * abs(mean) / spread if spread else Fraction(0)


def overfitting_logits(returns, blocks):
    """The logit of the out-of-sample rank of the in-sample best, for every half of the blocks.

    `returns` is a list of T rows of S numbers.
    """
    bars, strategies = len(returns), len(returns[0])
    bounds = block_bounds(bars, blocks)
    logits = []
    for chosen in combinations(range(blocks), blocks // 2):
        inside, outside = [], []
        for k, (start, end) in enumerate(bounds):
            (inside if k in chosen else outside).extend(range(start, end))
        scores_in = [sharpe_rank([returns[t][s] for t in inside]) for s in range(strategies)]
        scores_out = [sharpe_rank([returns[t][s] for t in outside]) for s in range(strategies)]
        best = scores_in.index(max(scores_in))
        below = sum(score < scores_out[best] for score in scores_out)
        equal = sum(score == scores_out[best] for score in scores_out)
        omega = (below + (equal + 1) / 2) / (strategies + 1)
        logits.append(math.log(omega / (1.0 - omega)))
    return logits


def overfitting(returns, blocks):
    """The share of the halves whose best lies below the median of the other half."""
    logits = overfitting_logits(returns, blocks)
    return sum(logit < 0.0 for logit in logits) / len(logits)


def stationary_resample(values, restarts, starts):
    """Politis & Romano 1994: go on to the next bar, or start anew where `restarts` says so."""
    n = len(values)
    at, drawn = starts[0], []
    for t in range(n):
        if t > 0:
            at = starts[t] if restarts[t] else (at + 1) % n
        drawn.append(values[at])
    return drawn
