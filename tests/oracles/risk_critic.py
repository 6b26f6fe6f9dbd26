"""All-action risk: increments of a shortfall, expected surrogate, strata; float64 loops.

The episode's utility is G + (lambda / alpha) min(G - nu, 0). Its second part is the sum of the
increments rho_t = min(C_t + r_t - nu, 0) - min(C_t - nu, 0), where C_t is the return before step t;
the sum over an episode is min(G - nu, 0) - min(-nu, 0).

K is the number of actions, the last dimension everywhere; `*b` is anything before it.
"""

import itertools
import math

import numpy as np


def shortfall_increment(reward, earned, level):
    """rho = min(C + r - nu, 0) - min(C - nu, 0), elementwise.

    The arguments broadcast against each other: a reward of every action [*b, K] goes with a return
    so far [*b, 1] and a level of any shape that fits.
    """
    reward, earned, level = np.broadcast_arrays(
        *(np.asarray(value, dtype=np.float64) for value in (reward, earned, level))
    )
    result = np.empty(reward.shape)
    for i in np.ndindex(reward.shape):
        before = float(earned[i]) - float(level[i])
        after = float(earned[i]) + float(reward[i]) - float(level[i])
        result[i] = min(after, 0.0) - min(before, 0.0)
    return result


def expected_surrogate(log_probs_new, log_probs_old, advantage, clip):
    """-sum_a pi_old(a) min(r_a A_a, clip(r_a, 1 - eps, 1 + eps) A_a), r_a = pi_new(a) / pi_old(a).

    All three are [*b, K]; the result is [*b]. An action of probability 0 under the old policy, log
    probability -inf, contributes 0, whatever its ratio and advantage.
    """
    result = np.empty(log_probs_old.shape[:-1])
    for i in np.ndindex(result.shape):
        terms = []
        for new, old, gain in zip(log_probs_new[i], log_probs_old[i], advantage[i], strict=True):
            if old == -math.inf:
                continue
            ratio = math.exp(float(new) - float(old))
            held = min(max(ratio, 1.0 - clip), 1.0 + clip)
            terms.append(-math.exp(float(old)) * min(ratio * float(gain), held * float(gain)))
        result[i] = math.fsum(terms)
    return result


def expected_surrogate_gradient(log_probs_new, log_probs_old, advantage, clip):
    """Derivative by each log pi_new(a), the others held: -pi_new(a) A_a, or 0 on the flat branch.

    Flat is a ratio above 1 + eps with a positive advantage, or below 1 - eps with a negative one.
    """
    result = np.zeros(log_probs_old.shape)
    for i in np.ndindex(log_probs_old.shape):
        if log_probs_old[i] == -math.inf:
            continue
        ratio = math.exp(float(log_probs_new[i]) - float(log_probs_old[i]))
        gain = float(advantage[i])
        flat = (gain > 0.0 and ratio > 1.0 + clip) or (gain < 0.0 and ratio < 1.0 - clip)
        result[i] = 0.0 if flat else -math.exp(float(log_probs_new[i])) * gain
    return result


def centred(values, probs):
    """values - sum_a probs(a) values(a), both [*b, K]."""
    result = np.empty(values.shape)
    for i in np.ndindex(values.shape[:-1]):
        mean = math.fsum(float(p) * float(x) for p, x in zip(probs[i], values[i], strict=True))
        for a in range(values.shape[-1]):
            result[i][a] = float(values[i][a]) - mean
    return result


def grid_probabilities(log_density):
    """Probabilities proportional to the density at equally spaced grid points, [*b, K].

    p_k = exp(l_k) / sum_j exp(l_j): the spacing cancels. The largest is taken off first.
    """
    result = np.empty(log_density.shape)
    for i in np.ndindex(log_density.shape[:-1]):
        largest = max(float(x) for x in log_density[i])
        density = [math.exp(float(x) - largest) for x in log_density[i]]
        total = math.fsum(density)
        for k, part in enumerate(density):
            result[i][k] = part / total
    return result


def stratified_draws(scores, n_tail, n_rest):
    """Every draw as (rows, weights): equally likely, with the stratum of the lowest scores first.

    Of N rows the `n_tail` of the lowest scores are in every draw, with weight 1; of the others
    `n_rest` are drawn without replacement, each with weight (N - n_tail) / n_rest. Of equal scores
    the earlier row is the lower. Enumerates all subsets, so N must be small.
    """
    order = sorted(range(len(scores)), key=lambda row: (scores[row], row))
    tail, rest = order[:n_tail], order[n_tail:]
    weight = len(rest) / n_rest if n_rest else 0.0
    return [
        ([*tail, *drawn], [1.0] * len(tail) + [weight] * len(drawn))
        for drawn in itertools.combinations(rest, n_rest)
    ]


def stratified_inclusion(scores, n_tail, n_rest):
    """Probability that each row is drawn, [N]: by counting the draws that hold it."""
    draws = stratified_draws(scores, n_tail, n_rest)
    return np.array(
        [sum(row in rows for rows, _ in draws) / len(draws) for row in range(len(scores))]
    )


def stratified_expectation(values, scores, n_tail, n_rest):
    """Mean over all draws of sum weight * x: equals sum x for every n_rest of at least 1."""
    draws = stratified_draws(scores, n_tail, n_rest)
    sums = [
        math.fsum(weight * float(values[row]) for row, weight in zip(rows, weights, strict=True))
        for rows, weights in draws
    ]
    return math.fsum(sums) / len(sums)


def balancing_multiplier(mean_adv, risk_adv, probs, weight):
    """-<A_mean, A_rho> / <A_rho, A_rho>; 0 where the denominator is 0.

    <x, y> = sum_b w_b sum_a pi_b(a) x_b(a) y_b(a) / sum_b w_b; advantages and probabilities are
    [*b, K], the weight is [*b].
    """

    def product(x, y):
        return math.fsum(
            float(weight[i]) * float(probs[i][a]) * float(x[i][a]) * float(y[i][a])
            for i in np.ndindex(weight.shape)
            for a in range(probs.shape[-1])
        )

    size = product(risk_adv, risk_adv)  # the sum of the weights cancels
    return -product(mean_adv, risk_adv) / size if size > 0.0 else 0.0
