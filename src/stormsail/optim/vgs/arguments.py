"""What `VarianceGradientScaler` accepts, and the words in which it refuses the rest."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from stormsail.core.errors import ArgumentError, DtypeError, RangeError

Parameters = Iterable[tuple[str, Tensor] | Tensor]
"""(name, parameter) pairs, or parameters alone."""


def by_name(named_parameters: Parameters) -> dict[str, Tensor]:
    """Return the parameters by name; those without one are named by position.

    Raises:
        ArgumentError: if a name or a parameter comes twice.
        DtypeError: if a parameter is not floating-point.
        RangeError: if there is none.
    """
    found: dict[str, Tensor] = {}
    for place, item in enumerate(named_parameters):
        name, tensor = item if isinstance(item, tuple) else (str(place), item)
        if name in found:
            raise ArgumentError(
                "name-form",
                wrong="each parameter must have a name of its own",
                found=f"`{name}` twice",
                remedy="Pass `model.named_parameters()`.",
            )
        if any(tensor is other for other in found.values()):
            raise ArgumentError(
                "name-form",
                wrong="each parameter must have one name",
                found=f"`{name}`, which is there under another one",
                remedy="Pass `model.named_parameters()`, which names a shared tensor once.",
            )
        if not tensor.is_floating_point():
            raise DtypeError(
                wrong=f"the parameter `{name}` must be a floating-point tensor",
                found=f"{tensor.dtype}",
                remedy="Leave it out.",
            )
        found[name] = tensor
    if not found:
        raise RangeError(
            wrong="`named_parameters` must hold at least one parameter",
            found="none",
            remedy="Pass `model.named_parameters()`; an iterator can be used only once.",
        )
    return found


def common_place(tensors: list[Tensor]) -> tuple[torch.device, torch.dtype]:
    """Return the one device of the tensors, and the dtype of their statistics.

    Raises:
        ArgumentError: if they are on several devices.
    """
    devices = sorted({str(tensor.device) for tensor in tensors})
    if len(devices) > 1:
        raise ArgumentError(
            "out-of-range",
            wrong="all parameters of one scaler must be on one device",
            found=", ".join(devices),
            remedy="Use one scaler for each device.",
        )
    wide = any(tensor.dtype == torch.float64 for tensor in tensors)
    return tensors[0].device, torch.float64 if wide else torch.float32


def check_numbers(
    beta: float,
    alpha: float,
    eps_rel: float,
    warmup_steps: int,
    min_scaling_factor: float,
    variance_cap: float,
) -> None:
    """Refuse settings of a scaler that lie outside their ranges."""
    rules = {
        "beta": (beta, 0.0 <= beta < 1.0, "lie in [0, 1)", 0.99),
        "alpha": (alpha, 0.0 <= alpha < math.inf, "be at least 0 and finite", 0.1),
        "eps_rel": (eps_rel, 0.0 < eps_rel < math.inf, "be greater than 0 and finite", 1e-3),
        "warmup_steps": (warmup_steps, warmup_steps >= 0, "be at least 0", 100),
        "min_scaling_factor": (
            min_scaling_factor,
            0.0 < min_scaling_factor <= 1.0,
            "lie in (0, 1]",
            0.5,
        ),
        "variance_cap": (variance_cap, variance_cap > 0.0, "be greater than 0", 50),
    }
    for name, (value, holds, rule, default) in rules.items():
        if not holds:
            raise RangeError(
                wrong=f"`{name}` must {rule}",
                found=repr(value),
                remedy=f"The default is {default}.",
            )
