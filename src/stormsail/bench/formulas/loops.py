"""The formulas as plain Python loops over time and environments.

NumPy does the work inside one cell where it has a word for it. These are yardsticks for speed, and
the numbers must agree; the oracles of the test suite are written apart from both.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


def gae(
    reward: Array,
    value: Array,
    bootstrap: Array,
    terminated: Flags,
    truncated: Flags,
    gamma: float,
    lam: float,
) -> Array:
    """Return the advantage by the backward recursion."""
    steps, environments = reward.shape
    advantage = np.zeros_like(reward)
    for b in range(environments):
        following = 0.0
        for t in reversed(range(steps)):
            next_value = 0.0 if terminated[t, b] else bootstrap[t, b]
            delta = reward[t, b] + gamma * next_value - value[t, b]
            trace = 0.0 if terminated[t, b] or truncated[t, b] else following
            following = delta + gamma * lam * trace
            advantage[t, b] = following
    return advantage


def _window(
    reward: Array, done: Flags, cell: tuple[int, int], gamma: float, steps: int
) -> tuple[float, int, float]:
    """Return reward sum, last row and discount of the window that starts at one cell."""
    t, b = cell
    total, discount = 0.0, 1.0
    for last in range(t, min(t + steps, len(reward))):
        total += discount * reward[last, b]
        discount *= gamma
        if done[last, b]:
            break
    return total, last, discount


def quantile_nstep_targets(
    reward: Array, quantiles: Array, terminated: Flags, truncated: Flags, gamma: float, steps: int
) -> Array:
    """Return the n-step atoms, one window at a time."""
    done = terminated | truncated
    targets = np.empty_like(quantiles)
    for t, b in np.ndindex(*reward.shape):
        total, last, discount = _window(reward, done, (t, b), gamma, steps)
        next_value = 0.0 if terminated[last, b] else quantiles[last, b]
        targets[t, b] = total + discount * next_value
    return targets


def _mix(first: list[float], second: list[float], lam: float) -> list[float]:
    """Return the midpoint quantiles of a mixture of two distributions of equal atoms."""
    atoms = sorted([(x, 1.0 - lam) for x in first] + [(x, lam) for x in second])
    quantiles: list[float] = []
    mass = 0.0
    for atom, weight in atoms:
        mass += weight
        while len(quantiles) < len(first) and mass >= len(quantiles) + 0.5 - 1e-9:
            quantiles.append(atom)
    return quantiles


def quantile_lambda_targets(
    reward: Array, quantiles: Array, terminated: Flags, truncated: Flags, gamma: float, lam: float
) -> Array:
    """Return the atoms of the lambda-mixture by the backward recursion."""
    steps, environments, _ = quantiles.shape
    targets = np.empty_like(quantiles)
    for b in range(environments):
        mixed: list[float] = []
        for t in reversed(range(steps)):
            boot = sorted(quantiles[t, b].tolist())
            stops = t == steps - 1 or terminated[t, b] or truncated[t, b]
            mixed = boot if stops else _mix(boot, mixed, lam)
            scale = 0.0 if terminated[t, b] else gamma
            mixed = [reward[t, b] + scale * atom for atom in mixed]
            targets[t, b] = mixed
    return targets


def categorical_nstep_targets(
    reward: Array,
    probs: Array,
    terminated: Flags,
    truncated: Flags,
    atoms: Array,
    gamma: float,
    steps: int,
) -> Array:
    """Return the projected n-step distributions, one window at a time."""
    done = terminated | truncated
    targets = np.zeros_like(probs)
    spacing = atoms[1] - atoms[0]
    for t, b in np.ndindex(*reward.shape):
        total, last, discount = _window(reward, done, (t, b), gamma, steps)
        if terminated[last, b]:
            points, mass = np.array([total]), np.ones(1)
        else:
            points, mass = total + discount * atoms, probs[last, b]
        where = (np.clip(points, atoms[0], atoms[-1]) - atoms[0]) / spacing
        lower = np.clip(np.floor(where).astype(int), 0, len(atoms) - 2)
        share = where - lower
        np.add.at(targets[t, b], lower, mass * (1.0 - share))
        np.add.at(targets[t, b], lower + 1, mass * share)
    return targets


def huber_loss(predicted: Array, target: Array, kappa: float) -> Array:
    """Return the quantile Huber loss of every cell."""
    n = predicted.shape[-1]
    tau = (np.arange(n) + 0.5) / n
    loss = np.empty(predicted.shape[:2])
    for t, b in np.ndindex(*loss.shape):
        u = target[t, b][None, :] - predicted[t, b][:, None]
        size = np.abs(u)
        huber = np.where(size <= kappa, 0.5 * u**2, kappa * (size - 0.5 * kappa)) / kappa
        loss[t, b] = (np.abs(tau[:, None] - (u < 0)) * huber).mean()
    return loss


def cvar(quantiles: Array, alpha: float) -> Array:
    """Return the lower-tail mean of every cell."""
    n = quantiles.shape[-1]
    share = np.clip(alpha * n - np.arange(n), 0.0, 1.0) / (alpha * n)
    result = np.empty(quantiles.shape[:2])
    for t, b in np.ndindex(*result.shape):
        result[t, b] = np.sort(quantiles[t, b]) @ share
    return result


def budget_advantage(atoms: Array, quantiles: Array, budget: Array, alpha: float) -> Array:
    """Return the change of expected shortfall of every cell."""
    result = np.empty(budget.shape)
    for t, b in np.ndindex(*result.shape):
        after = np.minimum(atoms[t, b] - budget[t, b], 0.0).mean()
        expected = np.minimum(quantiles[t, b] - budget[t, b], 0.0).mean()
        result[t, b] = (after - expected) / alpha
    return result


def clipped_surrogate(log_prob: Array, old_log_prob: Array, advantage: Array, clip: float) -> Array:
    """Return the clipped policy loss of every cell."""
    result = np.empty(log_prob.shape)
    for t, b in np.ndindex(*result.shape):
        ratio = np.exp(np.clip(log_prob[t, b] - old_log_prob[t, b], -20.0, 20.0))
        clipped = np.clip(ratio, 1.0 - clip, 1.0 + clip)
        result[t, b] = -min(ratio * advantage[t, b], clipped * advantage[t, b])
    return result
