"""Normalisers that are saved with a network: of observations and of returns."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from stormsail.functional import return_scale, statistics
from stormsail.functional.kernels.decisions import serves, standardised
from stormsail.functional.statistics import Moments

CLIP = 10.0
"""Largest normalised observation."""

EPS = 1e-8
"""Added to a variance."""


class Held(NamedTuple):
    """Statistics of observations that stay as they are for a while."""

    variance: Tensor
    """Of each column."""
    passed: Tensor
    """Columns that are passed on as they are, bool."""


class ObservationScale(nn.Module):
    """Running mean and variance of each column; frozen between calls of `commit`.

    Args:
        width: number of columns F.
        frozen: columns that are passed on as they are, because they are scaled already.
    """

    def __init__(self, width: int, *, frozen: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("m2", torch.zeros(width, dtype=torch.float64))
        keep = torch.zeros(width, dtype=torch.bool) if frozen is None else frozen
        self.register_buffer("frozen", keep)
        self.count: Tensor
        self.mean: Tensor
        self.m2: Tensor
        self.frozen: Tensor

    @property
    def moments(self) -> Moments:
        """Count, mean and sum of squared deviations seen so far."""
        return Moments(self.count, self.mean, self.m2)

    def commit(self, seen: Moments, *, sound: Tensor | None = None) -> None:
        """Merge the moments of new observations; nothing changes where a flag is false."""
        merged = statistics.merge(self.moments, seen)
        for old, new in zip(self.moments, merged, strict=True):
            old.copy_(new if sound is None else torch.where(sound, new, old))

    def held(self) -> Held:
        """Return what `forward` makes of the statistics, for many calls between two commits."""
        return Held(statistics.variance(self.moments), self.frozen | (self.count <= 0.0))

    def forward(self, observation: Tensor, held: Held | None = None) -> Tensor:
        """Return the observation standardised, within +-10; before any statistics, as it is."""
        variance, passed = self.held() if held is None else held
        if serves(observation, self.mean):
            return standardised(observation, self.mean, variance, passed, clip=CLIP, eps=EPS)
        scaled = statistics.standardise(observation, self.mean, variance, clip=CLIP, eps=EPS)
        return torch.where(passed, observation, scaled)


class ReturnScale(nn.Module):
    """Return scale: mean and standard deviation by which returns are normalised for the critics."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("std", torch.ones((), dtype=torch.float64))
        self.mean: Tensor
        self.std: Tensor

    def encode(self, returns: Tensor) -> Tensor:
        """Return normalised returns, (R - mean) / std."""
        return return_scale.encode(returns, self.mean, self.std)

    def decode(self, predicted: Tensor) -> Tensor:
        """Return predictions in reward units, std * v + mean."""
        return return_scale.decode(predicted, self.mean, self.std)
