"""Policy losses, one sample at a time, in plain float64 Python.

Definitions: Schulman et al. 2017 (arXiv:1707.06347, Eq. 7) for the clipped surrogate, Schulman's
note "Approximating KL divergence" (2020) for k1 and k3, Peng et al. 2019 (arXiv:1910.00177,
Alg. 1) for advantage-weighted regression.
"""

import math

import numpy as np

LOG_RATIO_BOUND = 20.0


def _ratio(log_prob, old_log_prob):
    """Probability ratio with the log-ratio held inside the bound."""
    log_ratio = float(log_prob) - float(old_log_prob)
    return math.exp(min(max(log_ratio, -LOG_RATIO_BOUND), LOG_RATIO_BOUND))


def clipped_surrogate(log_prob, old_log_prob, advantage, clip):
    """PPO Eq. 7 with the sign of a loss: -min(r A, clip(r, 1 - c, 1 + c) A)."""
    loss = np.empty(log_prob.shape)
    for i in np.ndindex(log_prob.shape):
        ratio = _ratio(log_prob[i], old_log_prob[i])
        held = min(max(ratio, 1.0 - clip), 1.0 + clip)
        loss[i] = -min(ratio * advantage[i], held * advantage[i])
    return loss


def clipped_surrogate_gradient(log_prob, old_log_prob, advantage, clip):
    """Derivative with respect to log_prob: -r A, or 0 where the flat branch is the smaller one."""
    gradient = np.zeros(log_prob.shape)
    for i in np.ndindex(log_prob.shape):
        if abs(log_prob[i] - old_log_prob[i]) > LOG_RATIO_BOUND:
            continue
        ratio = _ratio(log_prob[i], old_log_prob[i])
        flat = (advantage[i] > 0 and ratio > 1.0 + clip) or (
            advantage[i] < 0 and ratio < 1.0 - clip
        )
        gradient[i] = 0.0 if flat else -ratio * advantage[i]
    return gradient


def k1(log_ratio):
    """Schulman's k1: minus the log-ratio."""
    estimate = np.empty(log_ratio.shape)
    for i in np.ndindex(log_ratio.shape):
        estimate[i] = -log_ratio[i]
    return estimate


def k3(log_ratio):
    """Schulman's k3: e^l - 1 - l; the power series where the plain formula would cancel."""
    estimate = np.empty(log_ratio.shape)
    for i in np.ndindex(log_ratio.shape):
        x = float(log_ratio[i])
        if abs(x) < 1.0:
            estimate[i] = math.fsum(x**n / math.factorial(n) for n in range(2, 25))
        else:
            estimate[i] = math.exp(x) - 1.0 - x
    return estimate


def ratio_is_clipped(log_ratio, clip):
    """PPO's clip fraction counts the samples with |r - 1| > c."""
    clipped = np.empty(log_ratio.shape, dtype=bool)
    for i in np.ndindex(log_ratio.shape):
        clipped[i] = abs(math.exp(log_ratio[i]) - 1.0) > clip
    return clipped


def awr_weight(advantage, beta, max_weight):
    """AWR Alg. 1, line 7, capped: min(exp(A / beta), w_max)."""
    weight = np.empty(advantage.shape)
    for i in np.ndindex(advantage.shape):
        exponent = float(advantage[i]) / beta
        beyond = exponent >= math.log(max_weight)
        weight[i] = max_weight if beyond else math.exp(exponent)
    return weight


def awr_loss(log_prob, advantage, beta, max_weight):
    """AWR's regression: minus the weighted log-likelihood."""
    weight = awr_weight(advantage, beta, max_weight)
    loss = np.empty(log_prob.shape)
    for i in np.ndindex(log_prob.shape):
        loss[i] = -weight[i] * log_prob[i]
    return loss
