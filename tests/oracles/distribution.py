"""Action distributions, one sample and one dimension at a time, in plain float64 Python.

Definitions: textbook densities; the squashed density by change of variables as in Haarnoja et al.
2018 (arXiv:1801.01290, App. C); the Beta policy of Chou et al. 2017.
"""

import math

import numpy as np
from scipy import special


def gaussian_log_prob(value, mean, std):
    """Sum over the last axis of log( exp(-(x - m)^2 / 2 s^2) / (s sqrt(2 pi)) )."""
    total = np.zeros(value.shape[:-1])
    for i in np.ndindex(value.shape):
        z = (value[i] - mean[i]) / std[i]
        total[i[:-1]] += -0.5 * z * z - math.log(std[i] * math.sqrt(2.0 * math.pi))
    return total


def gaussian_entropy(std):
    """Sum over the last axis of log(2 pi e s^2) / 2."""
    total = np.zeros(std.shape[:-1])
    for i in np.ndindex(std.shape):
        total[i[:-1]] += 0.5 * math.log(2.0 * math.pi * math.e * std[i] ** 2)
    return total


def gaussian_kl(mean, std, other_mean, other_std):
    """KL(first || other) = log(s2 / s1) + (s1^2 + (m1 - m2)^2) / (2 s2^2) - 1/2, summed."""
    total = np.zeros(mean.shape[:-1])
    for i in np.ndindex(mean.shape):
        spread = std[i] ** 2 + (mean[i] - other_mean[i]) ** 2
        total[i[:-1]] += math.log(other_std[i] / std[i]) + spread / (2.0 * other_std[i] ** 2) - 0.5
    return total


def _softmax(row):
    """Probabilities exp(l_k) / sum exp(l_j), shifted by the largest logit."""
    top = max(float(x) for x in row)
    mass = [math.exp(float(x) - top) for x in row]
    total = math.fsum(mass)
    return [m / total for m in mass]


def categorical_log_prob(logits, action):
    """Log of the softmax probability of the action."""
    out = np.empty(action.shape)
    for i in np.ndindex(action.shape):
        out[i] = math.log(_softmax(logits[i])[int(action[i])])
    return out


def categorical_entropy(logits):
    """Shannon entropy -sum p log p with 0 log 0 = 0."""
    out = np.empty(logits.shape[:-1])
    for i in np.ndindex(out.shape):
        out[i] = -math.fsum(p * math.log(p) for p in _softmax(logits[i]) if p > 0.0)
    return out


def categorical_kl(logits, other_logits):
    """KL(first || other) = sum p log(p / q) with 0 log(0 / q) = 0."""
    out = np.empty(logits.shape[:-1])
    for i in np.ndindex(out.shape):
        pairs = zip(_softmax(logits[i]), _softmax(other_logits[i]), strict=True)
        out[i] = math.fsum(p * math.log(p / q) for p, q in pairs if p > 0.0)
    return out


def masked_probabilities(logits, mask):
    """exp(l_k) over the sum of exp(l_j) of allowed classes; 0 for the others."""
    out = np.zeros(logits.shape)
    for i in np.ndindex(logits.shape[:-1]):
        allowed = [k for k in range(logits.shape[-1]) if mask[i][k]]
        for k, p in zip(allowed, _softmax([logits[i][k] for k in allowed]), strict=True):
            out[i][k] = p
    return out


def _each_choice(counts):
    """First and one past the last class of each choice."""
    first = 0
    for count in counts:
        yield first, first + count
        first += count


def multi_categorical_log_prob(logits, action, counts):
    """Log of the product of the probabilities of every choice."""
    out = np.empty(logits.shape[:-1])
    for i in np.ndindex(out.shape):
        chance = 1.0
        for d, (a, b) in enumerate(_each_choice(counts)):
            chance *= _softmax(logits[i][a:b])[int(action[i][d])]
        out[i] = math.log(chance)
    return out


def _joint(row, counts):
    """Probability of every combination of classes."""
    chances = [1.0]
    for a, b in _each_choice(counts):
        part = _softmax(row[a:b])
        chances = [c * p for c in chances for p in part]
    return chances


def multi_categorical_entropy(logits, counts):
    """Shannon entropy over all combinations of classes, not choice by choice."""
    out = np.empty(logits.shape[:-1])
    for i in np.ndindex(out.shape):
        out[i] = -math.fsum(p * math.log(p) for p in _joint(logits[i], counts) if p > 0.0)
    return out


def multi_categorical_kl(logits, other_logits, counts):
    """KL(first || other) over all combinations of classes."""
    out = np.empty(logits.shape[:-1])
    for i in np.ndindex(out.shape):
        pairs = zip(_joint(logits[i], counts), _joint(other_logits[i], counts), strict=True)
        out[i] = math.fsum(p * math.log(p / q) for p, q in pairs if p > 0.0)
    return out


def _log_derivative(u, kind):
    """Log of da/du: sech^2 u = 4 / (e^u + e^-u)^2, or e^-u / (1 + e^-u)^2; even in u, so |u|."""
    size = abs(float(u))
    if kind == "tanh":
        return 2.0 * (math.log(2.0) - size - math.log1p(math.exp(-2.0 * size)))
    return -size - 2.0 * math.log1p(math.exp(-size))


def squash(pre_squash, kind):
    """The squashed action, tanh u or 1 / (1 + e^-u)."""
    out = np.empty(pre_squash.shape)
    for i in np.ndindex(pre_squash.shape):
        u = float(pre_squash[i])
        # The logistic function is (1 + tanh(u / 2)) / 2; this form never overflows.
        out[i] = math.tanh(u) if kind == "tanh" else 0.5 * (1.0 + math.tanh(0.5 * u))
    return out


def squash_log_det(pre_squash, kind):
    """Sum over the last axis of log |da/du|."""
    total = np.zeros(pre_squash.shape[:-1])
    for i in np.ndindex(pre_squash.shape):
        total[i[:-1]] += _log_derivative(pre_squash[i], kind)
    return total


def squashed_gaussian_log_prob(pre_squash, mean, std, kind):
    """Change of variables: log p(a) = log N(u) - log |da/du|."""
    return gaussian_log_prob(pre_squash, mean, std) - squash_log_det(pre_squash, kind)


def squashed_gaussian_entropy(pre_squash, std, kind):
    """H(a) = H(u) + E log |da/du|, the mean taken over the first axis."""
    log_det = squash_log_det(pre_squash, kind)
    mean = np.zeros(std.shape[:-1])
    for s in range(log_det.shape[0]):
        mean += log_det[s] / log_det.shape[0]
    return gaussian_entropy(std) + mean


def beta_log_prob(action, alpha, beta):
    """Sum over the last axis of log( x^(a-1) (1-x)^(b-1) Gamma(a+b) / Gamma(a) Gamma(b) )."""
    total = np.zeros(action.shape[:-1])
    for i in np.ndindex(action.shape):
        a, b, x = float(alpha[i]), float(beta[i]), float(action[i])
        total[i[:-1]] += (
            (a - 1.0) * math.log(x)
            + (b - 1.0) * math.log1p(-x)
            + math.lgamma(a + b)
            - math.lgamma(a)
            - math.lgamma(b)
        )
    return total


def beta_kl(alpha, beta, other_alpha, other_beta):
    """Sum of the mean of log p(x) - log q(x) under p, by the means psi(a) - psi(a+b) of log x."""
    total = np.zeros(alpha.shape[:-1])
    for i in np.ndindex(alpha.shape):
        a, b = float(alpha[i]), float(beta[i])
        other_a, other_b = float(other_alpha[i]), float(other_beta[i])
        mean_log = special.psi(a) - special.psi(a + b)
        mean_log_rest = special.psi(b) - special.psi(a + b)
        own = (a - 1.0) * mean_log + (b - 1.0) * mean_log_rest - special.betaln(a, b)
        other = (other_a - 1.0) * mean_log + (other_b - 1.0) * mean_log_rest
        total[i[:-1]] += own - (other - special.betaln(other_a, other_b))
    return total


def beta_entropy(alpha, beta):
    """Sum of log B(a,b) - (a-1) psi(a) - (b-1) psi(b) + (a+b-2) psi(a+b)."""
    total = np.zeros(alpha.shape[:-1])
    for i in np.ndindex(alpha.shape):
        a, b = float(alpha[i]), float(beta[i])
        total[i[:-1]] += (
            special.betaln(a, b)
            - (a - 1.0) * special.psi(a)
            - (b - 1.0) * special.psi(b)
            + (a + b - 2.0) * special.psi(a + b)
        )
    return total
