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


def largest_expected_maximum(trial_sharpes, unknown, bars):
    """The largest expected maximum of any subset of the trials, the unknown ones always in it.

    Every subset is tried; a deviation below 1 / sqrt(bars) counts as that.
    """
    floor = 1.0 / math.sqrt(bars)
    largest = 0.0
    for size in range(len(trial_sharpes) + 1):
        for subset in combinations(trial_sharpes, size):
            std = 0.0
            if size > 1:
                mean = math.fsum(subset) / size
                std = math.sqrt(math.fsum((x - mean) ** 2 for x in subset) / (size - 1))
            if size + unknown > 0:
                largest = max(largest, expected_maximum(size + unknown, max(std, floor)))
    return largest


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


def sharpe_difference(first, second):
    """Difference of two Sharpe ratios and its error: Ledoit & Wolf 2008, HAC, four moments.

    The 4 by 4 long-run covariance of (r1, r2, r1², r2²) in loops, with the kernel of Parzen; the
    bandwidth is that for the autoregression of the gradient times the deviations.
    """
    n = len(first)
    means = [math.fsum(values) / n for values in (first, second)]
    seconds = [math.fsum(x * x for x in values) / n for values in (first, second)]
    variances = [g - m * m for g, m in zip(seconds, means, strict=True)]
    gradient = [
        seconds[0] / variances[0] ** 1.5,
        -seconds[1] / variances[1] ** 1.5,
        -0.5 * means[0] / variances[0] ** 1.5,
        0.5 * means[1] / variances[1] ** 1.5,
    ]
    rows = [
        [a - means[0], b - means[1], a * a - seconds[0], b * b - seconds[1]]
        for a, b in zip(first, second, strict=True)
    ]
    moved = [math.fsum(g * v for g, v in zip(gradient, row, strict=True)) for row in rows]
    rho = math.fsum(moved[t] * moved[t + 1] for t in range(n - 1))
    rho /= math.fsum(moved[t] ** 2 for t in range(n - 1))
    width = min(2.6614 * (4.0 * rho**2 / (1.0 - rho) ** 4 * n) ** 0.2, n - 1)

    def gamma(lag, i, j):
        return math.fsum(rows[t][i] * rows[t - lag][j] for t in range(lag, n)) / n

    total = 0.0
    for i in range(4):
        for j in range(4):
            cell, lag = gamma(0, i, j), 1
            while lag < width:
                x = lag / width
                weight = 1 - 6 * x**2 + 6 * x**3 if x <= 0.5 else 2 * (1 - x) ** 3
                cell += weight * (gamma(lag, i, j) + gamma(lag, j, i))
                lag += 1
            total += gradient[i] * gradient[j] * cell * n / (n - 4)
    return sharpe(first) - sharpe(second), math.sqrt(total / n)


def studentised_differences(first, second, starts, block):
    """Studentised differences of the circular block resamples that begin at these places."""
    n = len(first)
    whole = sharpe(first) - sharpe(second)
    results = []
    for row in starts:
        places = [(start + k) % n for start in row for k in range(block)]
        a, b = ([values[t] for t in places] for values in (first, second))
        size = len(places)
        moved = []
        for values, side in ((a, 1.0), (b, -1.0)):
            mean, second_moment = math.fsum(values) / size, math.fsum(x * x for x in values) / size
            cube = (second_moment - mean**2) ** 1.5
            moved.append(
                [
                    side
                    * (second_moment * (x - mean) - 0.5 * mean * (x * x - second_moment))
                    / cube
                    for x in values
                ]
            )
        total = [x + y for x, y in zip(*moved, strict=True)]
        blocks = [math.fsum(total[j : j + block]) / math.sqrt(block) for j in range(0, size, block)]
        error = math.sqrt(math.fsum(z * z for z in blocks) / len(blocks) / size)
        results.append((sharpe(a) - sharpe(b) - whole) / error)
    return results
