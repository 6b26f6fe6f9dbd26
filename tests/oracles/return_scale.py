"""Return normalisation and PopArt, number by number, in plain float64 Python.

Definitions: van Hasselt et al. 2016 (arXiv:1602.07714, Prop. 1): a head whose normalised output is
v predicts std * v + mean; a change of (mean, std) is undone in the last layer.
"""

import numpy as np


def encode(x, mean, std):
    """Normalised value of each raw value."""
    out = np.empty(x.shape)
    for i in np.ndindex(x.shape):
        out[i] = (x[i] - mean) / std
    return out


def decode(x, mean, std):
    """Raw value of each normalised value."""
    out = np.empty(x.shape)
    for i in np.ndindex(x.shape):
        out[i] = std * x[i] + mean
    return out


def re_express(x, mean, std, new_mean, new_std):
    """Decode with the old statistics, encode with the new ones."""
    return encode(decode(x, mean, std), new_mean, new_std)


def head(weight, bias, features):
    """Output of a linear head, one dot product at a time."""
    out = np.empty(weight.shape[0])
    for o in range(weight.shape[0]):
        out[o] = bias[o]
        for h in range(weight.shape[1]):
            out[o] += weight[o, h] * features[h]
    return out


def popart_rescale(weight, bias, mean, std, new_mean, new_std):
    """Prop. 1: W std / std', (std b + mean - mean') / std'."""
    new_weight = np.empty(weight.shape)
    new_bias = np.empty(bias.shape)
    for o in range(weight.shape[0]):
        for h in range(weight.shape[1]):
            new_weight[o, h] = weight[o, h] * std / new_std
        new_bias[o] = (std * bias[o] + mean - new_mean) / new_std
    return new_weight, new_bias


def value_target_scale(std, clip, floor, cap):
    """One over the clipped range of the floored standard deviation, at most the cap."""
    width = clip * max(std, floor)
    return cap if width == 0.0 else min(cap, 1.0 / width)
