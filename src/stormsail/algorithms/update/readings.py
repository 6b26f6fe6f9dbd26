"""Small readings that the reports of an update share; tensors in, tensors without dimensions out.

Nothing here reads a value from the device, so that a whole report costs one wait.
"""

from typing import TypeAlias

import torch
from torch import Tensor

Values: TypeAlias = dict[str, Tensor | float]
"""Metrics before they are read: tensors without dimensions, or plain numbers."""


def share(part: Tensor, whole: Tensor) -> Tensor:
    """Return part / whole in float64; NaN where there is no whole."""
    whole = whole.double()
    return torch.where(whole > 0.0, part.double() / torch.where(whole > 0.0, whole, 1.0), torch.nan)


def mean(x: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted mean over the entries of positive weight; NaN if there is none."""
    used = weight > 0.0
    total = torch.where(used, x.double() * weight.double(), 0.0).sum()
    return share(total, torch.where(used, weight, 0.0).sum())


def spread(x: Tensor, weight: Tensor) -> Tensor:
    """Return the standard deviation, corrected by the effective count; NaN below two entries.

    The count is (sum w)^2 / sum w^2, the number of entries for weights of 0 and 1.
    """
    mass = torch.where(weight > 0.0, weight, 0.0).double()
    centred = torch.where(weight > 0.0, x.double() - mean(x, weight), 0.0)
    total = mass.sum()
    effective = share(total.square(), mass.square().sum())
    variance = share((mass * centred.square()).sum(), total)
    enough = effective > 1.0 + 1e-9
    correction = effective / torch.where(enough, effective - 1.0, 1.0)
    return torch.where(enough, (variance * correction).sqrt(), torch.nan)


def largest(x: Tensor, used: Tensor) -> Tensor:
    """Return the largest of the entries that are used; NaN if there is none."""
    if x.numel() == 0:
        return _nothing(x)
    top = torch.where(used, x.double(), -torch.inf).amax()
    return torch.where(used.any(), top, torch.nan)


def percentile(x: Tensor, used: Tensor, level: float) -> Tensor:
    """Return a percentile of the entries that are used, between neighbours; NaN if there is none.

    The rank is level * (n - 1), as numpy's default. Unlike `torch.quantile` it takes any number of
    entries and a mask.
    """
    if x.numel() == 0:
        return _nothing(x)
    ordered = torch.where(used, x.double(), torch.inf).flatten().sort().values
    count = used.sum()
    rank = level * (count - 1).clamp(min=0).double()
    low = rank.floor().long()
    high = torch.minimum(low + 1, (count - 1).clamp(min=0))
    below, above = ordered[low], ordered[high]
    between = torch.where(rank > low, below + (above - below) * (rank - low), below)
    return torch.where(count > 0, between, torch.nan)


def _nothing(x: Tensor) -> Tensor:
    return torch.full((), torch.nan, dtype=torch.float64, device=x.device)
