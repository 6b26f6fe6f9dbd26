"""Parameters of a network by name, and those of their gradients that are there."""

from collections.abc import Iterable

import torch
from torch import Tensor

from stormsail.core.errors import ArgumentError, DtypeError, RangeError
from stormsail.optim.tensor_lists import Layout, layout

Parameters = Iterable[tuple[str, Tensor] | Tensor]
"""(name, parameter) pairs, or parameters alone."""


class NamedParameters:
    """Parameters on one device, in order; those without a name are named by position.

    Raises:
        ArgumentError: if a name or a parameter comes twice, or they are on several devices.
        DtypeError: if a parameter is not floating-point.
        RangeError: if there is none.
    """

    def __init__(self, named_parameters: Parameters) -> None:
        self._by_name = _by_name(named_parameters)
        self.device = _common_device(self.tensors)
        self._layouts: dict[tuple[bool, ...], Layout] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in order."""
        return tuple(self._by_name)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The parameters, in order."""
        return tuple(self._by_name.values())

    def named(self, values: Tensor) -> dict[str, Tensor]:
        """Return the entries of [P] values by name."""
        return dict(zip(self._by_name, values.unbind(), strict=True))

    def gradients(self) -> tuple[list[Tensor], Layout]:
        """Return the gradients that are there, and their layout, which is kept for the next time.

        The layout lives on the device; making it copies from the host, so a graph is captured
        after a first step with the same gradients present.
        """
        tensors = self.tensors
        present = tuple(tensor.grad is not None and tensor.numel() > 0 for tensor in tensors)
        if present not in self._layouts:
            sizes = [tensor.numel() for tensor in tensors]
            self._layouts[present] = layout(present, sizes, device=self.device)
        grads = [tensor.grad for tensor in tensors if tensor.grad is not None and tensor.numel()]
        return grads, self._layouts[present]


def _by_name(named_parameters: Parameters) -> dict[str, Tensor]:
    named: dict[str, Tensor] = {}
    for place, item in enumerate(named_parameters):
        name, tensor = item if isinstance(item, tuple) else (str(place), item)
        if name in named:
            raise ArgumentError(
                "name-form",
                wrong="each parameter must have a name of its own",
                found=f"`{name}` twice",
                remedy="Pass `model.named_parameters()`.",
            )
        if any(tensor is other for other in named.values()):
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
        named[name] = tensor
    if not named:
        raise RangeError(
            wrong="`named_parameters` must hold at least one parameter",
            found="none",
            remedy="Pass `model.named_parameters()`; an iterator can be used only once.",
        )
    return named


def _common_device(tensors: Iterable[Tensor]) -> torch.device:
    devices = {str(tensor.device): tensor.device for tensor in tensors}
    if len(devices) > 1:
        raise ArgumentError(
            "out-of-range",
            wrong="all parameters must be on one device",
            found=", ".join(sorted(devices)),
            remedy="Use one scaler or pipeline for each device.",
        )
    return next(iter(devices.values()))
