"""Utility-gated descent, weight by weight, in plain float64 Python.

`fixed` follows the written rule: u = -g p, an average with bias correction by the tensor's own
count of steps, a gate over all tensors together, decay first, then lr * compensation * (1 - s) *
(direction + noise). `official` follows what the authors of arXiv:2404.00781 published: the gate is
the sigmoid of the corrected average over the largest *uncorrected* one, and the factor is 2.
"""

import math

import numpy as np

EPS64 = 2.0**-52
ZERO_RANGE = 64.0
DEFAULTS = {
    "weight_decay": 0.0,
    "beta_utility": 0.999,
    "lr_compensation": 2.0,
    "betas": None,
    "eps": 1e-8,
    "noise_scale": "absolute",
    "sigma": 0.0,
    "maximize": False,
}


def sigmoid(x):
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0.0 else math.exp(x) / (1.0 + math.exp(x))


def gate(utilities, mode, epsilon=EPS64):
    """Return s for a flat list of corrected utilities, over all of them together."""
    low, high = min(utilities), max(utilities)
    size = max(abs(low), abs(high))
    middle = math.fsum(utilities) / len(utilities)
    reach = max(abs(u - middle) for u in utilities)
    spread = reach if mode == "centred" else high - low
    if spread <= ZERO_RANGE * epsilon * size:
        return [0.5] * len(utilities)
    if mode == "centred":
        return [sigmoid((u - middle) / reach) for u in utilities]
    if mode == "abs_max":
        return [sigmoid(u / size) for u in utilities]
    if mode == "global_max" and high > 0.0:
        return [sigmoid(u / high) for u in utilities]
    assert mode in {"minmax", "global_max"}
    return [sigmoid(2.0 * ((u - low) / (high - low) - 0.5)) for u in utilities]


def official_gate(corrected, raw):
    """Return s as published: corrected numerator, uncorrected maximum."""
    largest = max(raw)
    return [sigmoid(u / largest) for u in corrected]


def rms(values):
    return math.sqrt(math.fsum(v * v for v in values) / len(values))


class Upgd:
    """Parameters as float64 arrays, stepped one weight at a time.

    `settings` holds one mapping per tensor, so that parameter groups are nothing special here.
    """

    def __init__(self, params, settings, *, utility_norm="centred", variant="fixed"):
        self.params = [np.array(p, dtype=np.float64) for p in params]
        self.settings = [DEFAULTS | s for s in settings]
        self.utility_norm, self.variant = utility_norm, variant
        self.count = [0] * len(params)
        self.utility = [np.zeros(p.shape) for p in self.params]
        self.first = [np.zeros(p.shape) for p in self.params]
        self.second = [np.zeros(p.shape) for p in self.params]

    def step(self, grads, noise=None, scales=None):
        """Take one step; a gradient of None leaves its tensor alone. `noise` is N(0, 1)."""
        used = [i for i, g in enumerate(grads) if g is not None]
        if not used:
            return
        signed = {i: -grads[i] if self.settings[i]["maximize"] else grads[i] for i in used}
        for i in used:
            self._average(i, signed[i])
        gates = self._gates(used)
        for i in used:
            unit = np.zeros(self.params[i].shape) if noise is None else noise[i]
            self._move(i, signed[i], gates[i], unit, 1.0 if scales is None else scales[i])

    def _average(self, i, grad):
        own, p = self.settings[i], self.params[i]
        self.count[i] += 1
        b1, b2 = own["betas"] or (0.0, 0.0)
        for at in np.ndindex(p.shape):
            g = float(grad[at])
            keep = own["beta_utility"]
            self.utility[i][at] = keep * self.utility[i][at] + (1.0 - keep) * (-g * p[at])
            self.first[i][at] = b1 * self.first[i][at] + (1.0 - b1) * g
            self.second[i][at] = b2 * self.second[i][at] + (1.0 - b2) * g * g

    def _gates(self, used):
        flat, raw, places = [], [], []
        for i in used:
            correction = 1.0 - self.settings[i]["beta_utility"] ** self.count[i]
            for at in np.ndindex(self.params[i].shape):
                flat.append(float(self.utility[i][at]) / correction)
                raw.append(float(self.utility[i][at]))
                places.append((i, at))
        fixed = self.variant == "fixed"
        values = gate(flat, self.utility_norm) if fixed else official_gate(flat, raw)
        gates = {i: np.zeros(self.params[i].shape) for i in used}
        for (i, at), s in zip(places, values, strict=True):
            gates[i][at] = s
        return gates

    def _direction(self, i, at, grad):
        own = self.settings[i]
        if own["betas"] is None:
            return float(grad[at])
        b1, b2 = own["betas"]
        m = self.first[i][at] / (1.0 - b1 ** self.count[i])
        v = self.second[i][at] / (1.0 - b2 ** self.count[i])
        return m / (math.sqrt(v) + own["eps"])

    def _move(self, i, grad, gates, unit, scale):
        own, p = self.settings[i], self.params[i]
        where = list(np.ndindex(p.shape))
        direction = {at: self._direction(i, at, grad) for at in where}
        size = {
            "absolute": 1.0,
            "rms_update": rms(list(direction.values())),
            "rms_grad": rms([float(grad[at]) for at in where]),
        }[own["noise_scale"]]
        factor = 2.0 if self.variant == "official" else own["lr_compensation"]
        for at in where:
            xi = own["sigma"] * size * float(unit[at])
            p[at] = p[at] * (1.0 - own["lr"] * own["weight_decay"])
            step = own["lr"] * factor * (1.0 - gates[at]) * (direction[at] + xi)
            p[at] = p[at] - scale * step
