"""Bounded perturbations of observations, number by number, in plain float64 Python.

Definitions: Muller 1959 (CACM 2(4)) for uniform points of a ball, Goodfellow et al. 2015
(arXiv:1412.6572) for FGSM, Madry et al. 2018 (arXiv:1706.06083) for projected gradient ascent,
Loshchilov and Hutter 2017 (arXiv:1608.03983) for the cosine.
"""

import math

import numpy as np


def norm(row):
    """Euclidean length of one row."""
    return math.sqrt(math.fsum(float(v) ** 2 for v in row))


def project_linf(delta, epsilon):
    """Nearest point of the box: each coordinate held inside [-epsilon, epsilon]."""
    out = np.empty(delta.shape)
    for i in np.ndindex(delta.shape):
        out[i] = min(max(delta[i], -epsilon), epsilon)
    return out


def project_l2(delta, epsilon):
    """Nearest point of the ball: the same direction, at most epsilon long."""
    out = np.array(delta, dtype=np.float64)
    for i in np.ndindex(delta.shape[:-1]):
        length = norm(delta[i])
        if length > epsilon:
            for f in range(delta.shape[-1]):
                out[i][f] = delta[i][f] * epsilon / length
    return out


def random_start(normal, uniform, epsilon, norm_name):
    """A uniform point: epsilon (2 Phi(z) - 1) per coordinate, or epsilon u^(1/F) z / |z|."""
    out = np.zeros(normal.shape)
    features = normal.shape[-1]
    for i in np.ndindex(normal.shape):
        if norm_name == "linf":
            out[i] = epsilon * math.erf(normal[i] / math.sqrt(2.0))
        else:
            radius = epsilon * float(uniform[i[:-1]]) ** (1.0 / features)
            out[i] = radius * normal[i] / norm(normal[i[:-1]])
    return out


def fgsm(gradient, epsilon):
    """Epsilon times the sign of every coordinate; nothing where the gradient is 0."""
    out = np.zeros(gradient.shape)
    for i in np.ndindex(gradient.shape):
        if gradient[i] != 0.0:
            out[i] = math.copysign(epsilon, gradient[i])
    return out


def pgd_step(delta, gradient, step, epsilon, norm_name):
    """One ascent step along the steepest direction of the norm, then the projection."""
    if norm_name == "linf":
        return project_linf(delta + fgsm(gradient, step), epsilon)
    moved = np.array(delta, dtype=np.float64)
    for i in np.ndindex(delta.shape[:-1]):
        length = norm(gradient[i])
        if length > 0.0:
            for f in range(delta.shape[-1]):
                moved[i][f] += step * gradient[i][f] / length
    return project_l2(moved, epsilon)


def langevin_gradient(gradient, noise, step, taken):
    """Each coordinate with noise of deviation sqrt(2 step 1e-5) / (taken + 2)."""
    out = np.empty(gradient.shape)
    for i in np.ndindex(gradient.shape):
        out[i] = gradient[i] + math.sqrt(2.0 * step * 1e-5) / (taken + 2.0) * noise[i]
    return out


def size(delta, norm_name):
    """Largest coordinate, or Euclidean length, of every row."""
    out = np.empty(delta.shape[:-1])
    for i in np.ndindex(out.shape):
        out[i] = norm(delta[i]) if norm_name == "l2" else max(abs(float(v)) for v in delta[i])
    return out


def ramp(update, updates):
    """Share of the radius in an update of a warm-up."""
    return min(update / updates, 1.0) if updates > 0 else 1.0


def apply_mask(obs, delta, mask, low=-math.inf, high=math.inf):
    """Perturb the chosen features and leave the others as they are.

    A bound stops a perturbation; a feature that already lay beyond it is not pulled in, so that no
    perturbation is no change.
    """
    out = np.array(obs, dtype=np.float64)
    for i in np.ndindex(obs.shape):
        if mask[i[-1]]:
            floor, ceiling = min(low, obs[i]), max(high, obs[i])
            out[i] = min(max(obs[i] + delta[i], floor), ceiling)
    return out


def epsilon_at(progress, initial, final, schedule):
    """Closed form of the radius; nothing is remembered between calls."""
    p = min(max(progress, 0.0), 1.0)
    if schedule == "constant":
        return initial
    if schedule == "linear":
        return initial + (final - initial) * p
    return final + (initial - final) * (1.0 + math.cos(math.pi * p)) / 2.0
