"""Metrics before they are read from the device, and the small formulas that several of them share.

Nothing here reads a value from the device, so that all metrics of an update cost one host sync.
"""

import math
from typing import TypeAlias

import torch
from torch import Tensor

from stormsail.functional import statistics
from stormsail.functional.statistics import Weights

Values: TypeAlias = dict[str, Tensor | float]
"""Metrics by name: tensors without dimensions, or plain numbers."""


def share(part: Tensor, whole: Tensor) -> Tensor:
    """Return part / whole in float64; NaN where the whole is not positive."""
    whole = whole.double()
    return torch.where(whole > 0.0, part.double() / torch.where(whole > 0.0, whole, 1.0), torch.nan)


def mean(x: Tensor, weight: Tensor | Weights) -> Tensor:
    """Return the weighted mean in float64; NaN if no entry has a positive weight."""
    return statistics.weighted_mean(x.double(), weight, empty=math.nan)


def mean_and_std(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return weighted mean and deviation in float64; NaN without entries, and below two of them."""
    average, deviation, count = statistics.mean_and_std(x, weight)
    enough = count > 1.0 + statistics.COUNT_TOLERANCE
    return (
        torch.where(count > 0.0, average, torch.nan),
        torch.where(enough, deviation, torch.nan),
    )


def largest(x: Tensor, used: Tensor) -> Tensor:
    """Return the largest of the entries that are used, in float64; NaN if there is none."""
    if x.numel() == 0:
        return torch.full((), torch.nan, dtype=torch.float64, device=x.device)
    top = torch.where(used, x.double(), -torch.inf).amax()
    return torch.where(used.any(), top, torch.nan)
