"""The risk control of one update, by loops over rows in float64. Nothing here is from `stormsail`.

T rows, B environments. Row t + 1 after an end is ignored: it earns nothing and counts nowhere.
"""

import math

import numpy as np

from oracles import risk


def ignored_rows(ended, first):
    """Return which rows only start a new episode; `first` says it of row 0."""
    T, B = ended.shape
    out = np.zeros((T, B), dtype=bool)
    for b in range(B):
        skip = bool(first[b])
        for t in range(T):
            out[t, b] = skip
            skip = bool(ended[t, b])
    return out


def finished(earned, reward, ended):
    """Return the returns of the episodes that ended, in the order of time, then of environments."""
    T, B = reward.shape
    return [earned[t, b] + reward[t, b] for t in range(T) for b in range(B) if ended[t, b]]


def window(samples, size):
    """Return the newest `size` samples."""
    kept = []
    for sample in samples:
        kept.append(sample)
        if len(kept) > size:
            kept.pop(0)
    return kept


def nstep_sums(reward, ended, ignored, steps):
    """Return what n steps earn from each row that begins none in vain, and its environment.

    A row counts if n rows are left, its own included, whatever happens in them; an episode that
    ends sooner counts with what it has.
    """
    T, B = reward.shape
    totals, columns = [], []
    for t in range(T - steps + 1):
        for b in range(B):
            if ignored[t, b]:
                continue
            total = 0.0
            for k in range(steps):
                total += reward[t + k, b]
                if ended[t + k, b]:
                    break
            totals.append(total)
            columns.append(b)
    return totals, columns


def winsorised(samples, percent):
    """Pull what lies beyond the quantile of `percent` on either side to it."""
    if percent == 0.0:
        return list(samples)
    low = risk.value_at_risk(samples, percent / 100.0)
    high = -risk.value_at_risk([-x for x in samples], percent / 100.0)
    return [min(max(x, low), high) for x in samples]


def deviation(samples):
    """Standard deviation with n - 1; 0 for one sample."""
    n = len(samples)
    if n < 2:
        return 0.0
    mean = math.fsum(samples) / n
    return math.sqrt(math.fsum((x - mean) ** 2 for x in samples) / (n - 1))


def moving_average(values, beta):
    """The first value, then beta * old + (1 - beta) * new; NaN is passed over."""
    out, average = [], None
    for value in values:
        if not math.isnan(value):
            average = value if average is None else beta * average + (1.0 - beta) * value
        out.append(math.nan if average is None else average)
    return out


def integral_dual(gaps, rate, top, start=0.0):
    """lambda <- clip(lambda + rate * gap, 0, top); an unknown gap changes nothing."""
    out, lam = [], start
    for gap in gaps:
        if not math.isnan(gap):
            lam = min(max(lam + rate * gap, 0.0), top)
        out.append(lam)
    return out


def pid_dual(gaps, kp, ki, kd, top):
    """[kp g + ki I + kd D]_+ up to `top`: I = [I + g]_+ up to top / ki, D = [g - previous g]_+.

    The first gap has no slope.
    """
    out, integral, before, lam = [], 0.0, None, 0.0
    for gap in gaps:
        if not math.isnan(gap):
            integral = max(integral + gap, 0.0)
            if ki > 0.0:
                integral = min(integral, top / ki)
            slope = 0.0 if before is None else max(gap - before, 0.0)
            lam = min(max(kp * gap + ki * integral + kd * slope, 0.0), top)
            before = gap
        out.append(lam)
    return out


def gate(values, threshold, hysteresis, ramp):
    """Open at the threshold, shut below threshold - hysteresis; return the share of the ramp.

    The ramp counts the updates since it opened: the first open one has 1 / ramp. What is unknown
    shuts nothing and opens nothing.
    """
    shares, is_open, count = [], False, 0
    for value in values:
        if value >= threshold:
            is_open = True
        elif value < threshold - hysteresis:
            is_open = False
        count = count + 1 if is_open else 0
        shares.append(0.0 if not is_open else 1.0 if ramp == 0 else min(1.0, count / ramp))
    return shares


def quantile_distribution(predicted, mean, std):
    """Return the quantiles of the critic with the smaller mean, the first of equals: [T, B, N]."""
    T, B = predicted.shape[:2]
    rows = []
    for t in range(T):
        for b in range(B):
            means = [float(np.mean(head)) for head in predicted[t, b]]
            rows.append(predicted[t, b][means.index(min(means))] * std + mean)
    return np.array(rows).reshape(T, B, -1)


def categorical_distribution(logits, atoms):
    """Return the probabilities of the critic with the smaller mean."""
    T, B = logits.shape[:2]
    rows = []
    for t in range(T):
        for b in range(B):
            distributions = [np.exp(head - head.max()) / np.exp(head - head.max()).sum()
                    for head in logits[t, b]]  # fmt: skip
            means = [float(np.dot(distribution, atoms)) for distribution in distributions]
            rows.append(distributions[means.index(min(means))])
    return np.array(rows).reshape(T, B, -1)


def budget(target, distribution, earned, weight, level, alpha, atoms=None):
    """b_t = nu - C_t; how much the action changed the expected shortfall below it."""
    T, B = earned.shape
    out = np.zeros((T, B))
    for t in range(T):
        for b in range(B):
            if weight[t, b] <= 0:
                continue
            left = level - earned[t, b]
            if atoms is None:
                out[t, b] = risk.budget_advantage(target[t, b], distribution[t, b], left, alpha)
            else:
                out[t, b] = risk.categorical_budget_advantage(
                    target[t, b], distribution[t, b], atoms, left, alpha
                )
    return out


def budget_trace(part, level, alpha, gamma, lam, atoms=None):
    """The trace form of every row with weight; `part` holds the arrays of a rollout by name."""
    result = risk.budget_trace(
        part["reward"], part["next"], part["own"], level - part["return_so_far"],
        part["terminated"], part["truncated"], alpha, gamma, lam, atoms,
    )  # fmt: skip
    return np.where(part["weight"] > 0, result, 0.0)


def state(target, distribution, weight, alpha, atoms=None):
    """The same with the budget of each state: the value at risk of its own distribution."""
    T, B = weight.shape
    out = np.zeros((T, B))
    for t in range(T):
        for b in range(B):
            if weight[t, b] <= 0:
                continue
            if atoms is None:
                level = risk.value_at_risk(distribution[t, b], alpha)
                out[t, b] = risk.budget_advantage(target[t, b], distribution[t, b], level, alpha)
            else:
                level = risk.categorical_value_at_risk(distribution[t, b], atoms, alpha, tie=1e-6)
                out[t, b] = risk.categorical_budget_advantage(
                    target[t, b], distribution[t, b], atoms, level, alpha
                )
    return out


def episode(earned, reward, ended, weight, level, alpha):
    """-(1/alpha) (nu - D)_+ for every step of an episode that ended with D, minus their mean."""
    T, B = reward.shape
    out, known = np.zeros((T, B)), np.zeros((T, B), dtype=bool)
    for b in range(B):
        for t in range(T):
            if weight[t, b] <= 0:
                continue
            for later in range(t, T):
                if ended[later, b]:
                    total = earned[later, b] + reward[later, b]
                    out[t, b] = -max(level - total, 0.0) / alpha
                    known[t, b] = True
                    break
    mass = sum(weight[t, b] for t in range(T) for b in range(B) if known[t, b])
    if mass == 0:
        return out
    mean = sum(weight[t, b] * out[t, b] for t in range(T) for b in range(B) if known[t, b]) / mass
    return np.where(known, out - mean, 0.0)


def weighted(values, weight):
    """Mean, and spread with the effective count, over rows with weight."""
    rows = [(x, w) for x, w in zip(values.ravel(), weight.ravel(), strict=True) if w > 0]
    mass = math.fsum(w for _, w in rows)
    mean = math.fsum(w * x for x, w in rows) / mass
    count = mass**2 / math.fsum(w * w for _, w in rows)
    variance = math.fsum(w * (x - mean) ** 2 for x, w in rows) / mass
    return mean, math.sqrt(variance * count / (count - 1.0))


def penalty(wanted, share, penalty_cap, term_cap, raw, advantage, weight):
    """Return the weight that acts: ramped, bounded, and shrunk so that its mean term is."""
    acting = min(wanted * share, penalty_cap)
    mean, _ = weighted(advantage, weight)
    _, spread = weighted(raw, weight)
    bound = term_cap * spread
    if abs(acting * mean) > bound:
        acting = bound / abs(mean)
    return acting


def mixed(raw, advantage, acting, lam, *, rescale):
    """A + (w + lambda) A_risk, over 1 + lambda if it is rescaled."""
    out = raw + (acting + lam) * advantage
    return out / (1.0 + lam) if rescale else out


def pooled_cvar(distribution, chosen, alpha, atoms=None):
    """CVaR of the mixture of the distributions of the chosen rows."""
    rows = [
        distribution[t, b]
        for t in range(distribution.shape[0])
        for b in range(distribution.shape[1])
        if chosen[t, b]
    ]
    if not rows:
        return math.nan
    if atoms is None:
        return risk.cvar([x for row in rows for x in row], alpha)
    probs = [math.fsum(row[k] for row in rows) / len(rows) for k in range(len(atoms))]
    return risk.categorical_cvar(probs, atoms, alpha)


def infeasible(gaps, lams, top, size, tolerance, patience):
    """Where the mean gap of `size` updates is not smaller by a share than that of earlier ones.

    At the cap for that long, earlier is the stretch before; else the one `patience` stretches ago.
    All gaps in between must be positive; unknown ones are not there.
    """
    flags, known = [], []
    for gap, lam in zip(gaps, lams, strict=True):
        if not math.isnan(gap):
            known.append((gap, lam))
        result = False
        for back in (1, patience):
            looked = known[-(back + 1) * size :]
            if len(looked) < (back + 1) * size or min(one for one, _ in looked) <= 0.0:
                continue
            if back == 1 and min(at for _, at in looked[-size:]) < top:
                continue
            before = math.fsum(one for one, _ in looked[:size]) / size
            now = math.fsum(one for one, _ in looked[-size:]) / size
            result = result or now > (1.0 - tolerance) * before
        flags.append(result)
    return flags
