"""A limit on CVaR: level, share of risk, trust in its critic, weighted quantile, error; loops.

Written from the formulas: L is the limit, q the value at risk, c the estimate of CVaR, alpha the
share of worst outcomes, b and c the rates at which the mean and the risk advantage move CVaR.
"""

import math
from fractions import Fraction

import numpy as np


def held(x, low, high):
    """[x] from `low` to `high`."""
    return low if x < low else high if x > high else x


def shortfall_level(value_at_risk, cvar, limit, best_held=math.inf):
    """nu = v - (v - L) [(L - c) / |L|] from 0 to 1, with v = max(q, L).

    A limit of 0 that is broken is broken whole. Where c is below L and above the best CVaR of held
    actions: v + L - c.
    """
    result = np.empty(np.shape(cvar))
    for i in np.ndindex(result.shape):
        q, c = float(value_at_risk[i]), float(cvar[i])
        v = q if q > limit else limit
        if limit == 0.0:
            share = 1.0 if c < 0.0 else 0.0
        else:
            share = held((limit - c) / abs(limit), 0.0, 1.0)
        result[i] = v - (v - limit) * share
        if best_held < c < limit:
            result[i] = v + (limit - c)
    return result


def account_share(reward, weight):
    """Squares about the mean of each episode and action, over those about the mean of each action.

    reward [episodes, accounts, actions], weight [episodes, accounts]; 0 without any variation.
    """
    reward, weight = np.asarray(reward, dtype=float), np.asarray(weight, dtype=float)
    episodes, accounts, actions = reward.shape
    within = total = 0.0
    for k in range(actions):
        mass = sum(weight[i, j] for i in range(episodes) for j in range(accounts))
        if mass == 0.0:
            continue
        grand = (
            sum(weight[i, j] * reward[i, j, k] for i in range(episodes) for j in range(accounts))
            / mass
        )
        for i in range(episodes):
            own = sum(weight[i, j] for j in range(accounts))
            if own == 0.0:
                continue
            mean = sum(weight[i, j] * reward[i, j, k] for j in range(accounts)) / own
            for j in range(accounts):
                within += weight[i, j] * (reward[i, j, k] - mean) ** 2
                total += weight[i, j] * (reward[i, j, k] - grand) ** 2
    return within / total if total > 0.0 else 0.0


def mixing_share(wanted, mean_rate, risk_rate, most_change):
    """x = [x_0 + [r / (c - b)] within d] from 0 to 1 with x_0 = -b / (c - b).

    Where c is not above b: 1 if r is above 0, else 0.
    """
    result = np.empty(np.shape(wanted))
    for i in np.ndindex(result.shape):
        r, b, c = float(wanted[i]), float(mean_rate[i]), float(risk_rate[i])
        if c > b:
            balance = -b / (c - b)
            result[i] = held(balance + held(r / (c - b), -most_change, most_change), 0.0, 1.0)
        else:
            result[i] = 1.0 if r > 0.0 else 0.0
    return result


def calibration_slope(product, square, errors):
    """[b + k s] from 0 to 1: b = sum p / sum q, s^2 = n / (n - 1) sum (p - b q)^2 / (sum q)^2.

    1 for fewer than two samples, or where all q are 0.
    """
    result = np.ones(np.shape(product)[:-1])
    n = np.shape(product)[-1]
    for i in np.ndindex(result.shape):
        p, q = [float(x) for x in product[i]], [float(x) for x in square[i]]
        if n < 2 or sum(q) == 0.0:
            continue
        b = sum(p) / sum(q)
        left = sum((p[j] - b * q[j]) ** 2 for j in range(n))
        s = math.sqrt(n / (n - 1) * left) / sum(q)
        result[i] = held(b + errors * s, 0.0, 1.0)
    return result


def shrink_to_mean(advantage, weight, share):
    """M(a) + c (A(s, a) - M(a)) with M(a) = sum_s w_s A(s, a) / sum_s w_s."""
    result = np.empty(np.shape(advantage))
    states = list(np.ndindex(np.shape(weight)))
    whole = sum(float(weight[s]) for s in states)
    for a in range(np.shape(advantage)[-1]):
        mean = sum(float(weight[s]) * float(advantage[s][a]) for s in states) / whole
        for s in states:
            result[s][a] = mean + share * (float(advantage[s][a]) - mean)
    return result


def floor_share(gap, weight, errors):
    """[G / s - k] from 0 to 1, halved: G = sum w g / sum w, s^2 = sum w^2 (g - G)^2 / (sum w)^2.

    Where all gaps are equal, a half if they are above 0.
    """
    result = np.zeros(np.shape(gap)[:-1])
    for i in np.ndindex(result.shape):
        g, w = [float(x) for x in gap[i]], [float(x) for x in weight[i]]
        whole = sum(w)
        mean = sum(a * b for a, b in zip(w, g, strict=True)) / whole
        s = math.sqrt(sum((a * (b - mean)) ** 2 for a, b in zip(w, g, strict=True))) / whole
        if s > 0.0:
            result[i] = 0.5 * held(mean / s - errors, 0.0, 1.0)
        else:
            result[i] = 0.5 if mean > 0.0 else 0.0
    return result


def pull_to_action(advantage, probability, action, share):
    """(1 - y) A + y (1[a = c] - p) / sqrt(p (1 - p)) where p = pi(c) is below a half, else A."""
    result = np.array(advantage, dtype=np.float64)
    for i in np.ndindex(result.shape[:-1]):
        p = max(float(probability[i][action]), 1e-6)
        if p < 0.5:
            for a in range(result.shape[-1]):
                pull = ((1.0 if a == action else 0.0) - p) / math.sqrt(max(p * (1.0 - p), 1e-6))
                result[i][a] = (1.0 - share) * float(advantage[i][a]) + share * pull
    return result


def weighted_value_at_risk(sample, weight, alpha):
    """The lowest x with weight of {outcomes <= x} >= alpha of the whole, in exact fractions.

    `weight` holds whole numbers and `alpha` is a fraction, so no sum is rounded.
    """
    whole = sum(int(part) for part in weight)
    for x in sorted(float(outcome) for outcome in sample):
        below = sum(int(part) for outcome, part in zip(sample, weight, strict=True) if outcome <= x)
        if Fraction(below, whole) >= alpha:
            return x
    raise AssertionError("the whole is never below alpha of itself")


def stratified_cvar_error(sample, weight, stratum, alpha, level, draws, place=None, reach=1):
    """sqrt(S^2 / M + sum_h W_h^2 s_h^2 / n_h + C) / alpha of x = min(G - nu, 0); s with n - 1.

    C: over all pairs, both orders, the products of weighted distances from the mean, times
    1 - distance of their places / reach where that is above 0; 0 where C is below 0.
    """
    x = [min(float(g) - level, 0.0) for g in sample]
    mean = math.fsum(float(w) * y for w, y in zip(weight, x, strict=True))
    variance = math.fsum(float(w) * (y - mean) ** 2 for w, y in zip(weight, x, strict=True))
    parts = [variance / draws]
    for side in (True, False):
        here = [k for k in range(len(x)) if bool(stratum[k]) is side]
        if len(here) < 2:
            continue
        share = math.fsum(float(weight[k]) for k in here)
        centre = math.fsum(x[k] for k in here) / len(here)
        squared = math.fsum((x[k] - centre) ** 2 for k in here) / (len(here) - 1)
        parts.append(share**2 * squared / len(here))
    if place is not None:
        z = [float(w) * (y - mean) for w, y in zip(weight, x, strict=True)]
        pairs = [
            z[i] * z[j] * max(1.0 - abs(int(place[i]) - int(place[j])) / reach, 0.0)
            for i in range(len(z))
            for j in range(len(z))
            if i != j
        ]
        parts.append(max(math.fsum(pairs), 0.0))
    return math.sqrt(math.fsum(parts)) / alpha
