"""Returns, advantages and distributional targets, written from their definitions.

Plain Python over float64 NumPy arrays, one loop for each index; nothing is vectorised and nothing
comes from `stormsail`. T time, B environments, N quantiles, K atoms.
"""

from fractions import Fraction

import numpy as np

from oracles.categorical import project_dirac, project_distribution

TIE = 1e-9
"""A level i + 1/2 counts as reached when N * F is at most this much below it."""


def temporal_difference(reward, value, bootstrap, terminated, gamma, t, b):
    """delta_t = r_t + gamma * V(s_{t+1}) - V(s_t), without the middle term after a termination."""
    delta = reward[t, b] - value[t, b]
    if not terminated[t, b]:
        delta += gamma * bootstrap[t, b]
    return delta


def gae(reward, value, bootstrap, terminated, truncated, gamma, lam):
    """Generalised advantage, Schulman et al. 2016, Eq. 16, as the backward recursion.

    A_t = delta_t + gamma * lam * A_{t+1}, the second term only while the episode goes on: a
    termination and a truncation both end the trace, only a termination ends the bootstrap.
    """
    T, B = reward.shape
    advantage = np.zeros((T, B))
    for b in range(B):
        following = 0.0
        for t in reversed(range(T)):
            delta = temporal_difference(reward, value, bootstrap, terminated, gamma, t, b)
            ended = terminated[t, b] or truncated[t, b]
            following = delta if ended else delta + gamma * lam * following
            advantage[t, b] = following
    return advantage


def gae_as_a_sum(reward, value, bootstrap, terminated, truncated, gamma, lam):
    """The same advantage as the sum over l of (gamma * lam)^l * delta_{t+l} inside one episode."""
    T, B = reward.shape
    advantage = np.zeros((T, B))
    for b in range(B):
        for t in range(T):
            for step in range(t, T):
                delta = temporal_difference(reward, value, bootstrap, terminated, gamma, step, b)
                advantage[t, b] += (gamma * lam) ** (step - t) * delta
                if terminated[step, b] or truncated[step, b]:
                    break
    return advantage


def window(terminated, truncated, t, b, steps):
    """Last row of the n-step window from t: `steps` rows, fewer at an end or at the last row."""
    last = t
    while (
        last - t + 1 < steps
        and last + 1 < terminated.shape[0]
        and not (terminated[last, b] or truncated[last, b])
    ):
        last += 1
    return last


def discounted_sum(reward, gamma, first, last, b):
    """Sum over k of gamma^k * r_{first+k}, up to and with row `last`."""
    total = 0.0
    for row in range(first, last + 1):
        total += gamma ** (row - first) * reward[row, b]
    return total


def quantile_nstep_targets(reward, bootstrap_quantiles, terminated, truncated, gamma, steps):
    """Target atoms y_j = sum gamma^k r + gamma^m theta_j(s_{t+m}); no theta after a termination."""
    T, B, N = bootstrap_quantiles.shape
    target = np.zeros((T, B, N))
    for t in range(T):
        for b in range(B):
            last = window(terminated, truncated, t, b, steps)
            total = discounted_sum(reward, gamma, t, last, b)
            for j in range(N):
                target[t, b, j] = total
                if not terminated[last, b]:
                    target[t, b, j] += gamma ** (last - t + 1) * bootstrap_quantiles[last, b, j]
    return target


def categorical_nstep_targets(reward, bootstrap_probs, terminated, truncated, atoms, gamma, steps):
    """Distribution of R + gamma^m Z on the atoms (Bellemare et al. 2017, Eq. 7, with n steps)."""
    T, B, K = bootstrap_probs.shape
    target = np.zeros((T, B, K))
    for t in range(T):
        for b in range(B):
            last = window(terminated, truncated, t, b, steps)
            total = discounted_sum(reward, gamma, t, last, b)
            if terminated[last, b]:
                target[t, b] = project_dirac(total, atoms)
            else:
                moved = [total + gamma ** (last - t + 1) * z for z in atoms]
                target[t, b] = project_distribution(bootstrap_probs[last, b], moved, atoms)
    return target


def inverse_of_mixture(first, second, weight, level):
    """Smallest x with N * F(x) >= level; F has mass (1-w)/N on `first`, w/N on `second`."""
    mass = 0.0
    atoms = sorted([(x, 1.0 - weight) for x in first] + [(x, weight) for x in second])
    for x, share in atoms:
        mass += share
        if mass >= level - TIE:
            return x
    return atoms[-1][0]


def quantile_lambda_targets(reward, bootstrap_quantiles, terminated, truncated, gamma, lam):
    """Quantiles of the lambda distribution: Z_t = r_t + gamma * mix((1-lam) bootstrap_t, lam
    Z_{t+1}).

    The mixture of 2N atoms is read at the midpoint levels by its inverse distribution function.
    """
    T, B, N = bootstrap_quantiles.shape
    target = np.zeros((T, B, N))
    for b in range(B):
        for t in reversed(range(T)):
            bootstrap = sorted(bootstrap_quantiles[t, b])
            for i in range(N):
                if terminated[t, b]:
                    following = 0.0
                elif truncated[t, b] or t == T - 1:
                    following = bootstrap[i]
                else:
                    following = inverse_of_mixture(bootstrap, target[t + 1, b], lam, i + 0.5)
                target[t, b, i] = reward[t, b] + gamma * following
    return target


def quantile_lambda_targets_exact(reward, bootstrap_quantiles, ended, gamma, lam):
    """The lambda distribution in rational numbers, for ends by truncation: levels are compared
    exactly.

    `gamma` and `lam` are fractions. F^-1(tau) is searched over all atoms instead of along a
    running sum: the smallest atom at which the share of mass not above it reaches the level.
    """
    T, B, N = bootstrap_quantiles.shape
    target = np.zeros((T, B, N))
    for b in range(B):
        later = []
        for t in reversed(range(T)):
            own = sorted(Fraction(x) for x in bootstrap_quantiles[t, b])
            if t == T - 1 or ended[t, b]:
                read = own
            else:
                read = []
                for i in range(N):
                    reached = []
                    for x in own + later:
                        below = Fraction(0)
                        for y in own:
                            below += (1 - lam) * (y <= x)
                        for y in later:
                            below += lam * (y <= x)
                        if below / N >= Fraction(2 * i + 1, 2 * N):
                            reached.append(x)
                    read.append(min(reached))
            later = [Fraction(reward[t, b]) + gamma * x for x in read]
            for i in range(N):
                target[t, b, i] = float(later[i])
    return target
