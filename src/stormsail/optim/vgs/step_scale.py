"""Ways to apply one factor per tensor to an optimizer's next step."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.optim import ASGD, SGD, Optimizer

from stormsail.core.errors import ArgumentError
from stormsail.optim import tensor_lists
from stormsail.optim.tensor_lists import Layout


@runtime_checkable
class TakesStepScale(Protocol):
    """An optimizer that multiplies each tensor's step, weight decay aside, by a factor.

    Any optimizer class may have these methods, not only those of this package.
    """

    def set_step_scale(self, parameters: Iterable[Tensor], scales: Tensor) -> None:
        """Use these factors from the next step on."""

    def clear_step_scale(self) -> None:
        """Use none from the next step on."""


class StepScale(Protocol):
    """Applies factors to the next step of an optimizer, and to that one only."""

    def set(self, parameters: Sequence[Tensor], factors: Tensor) -> None:
        """Take one factor for each parameter, for the next step."""


class OwnStepScale:
    """Passes the factors to an optimizer that takes them, and clears them after one step."""

    def __init__(self, optimizer: Optimizer, takes_scale: TakesStepScale) -> None:
        self._optimizer, self._takes_scale = optimizer, takes_scale
        self._pending = False
        optimizer.register_step_post_hook(self._after)

    def set(self, parameters: Sequence[Tensor], factors: Tensor) -> None:
        """Pass the factors on for the next step.

        Raises:
            ArgumentError: if the optimizer has none of the parameters.
        """
        own = {id(param) for group in self._optimizer.param_groups for param in group["params"]}
        kept = [place for place, param in enumerate(parameters) if id(param) in own]
        if not kept:
            raise ArgumentError(
                "missing-argument",
                wrong="the optimizer must hold a parameter of the scaler",
                found=f"none of {len(parameters)}",
                remedy="Build both from one model, and `relink` the scaler after that changes.",
            )
        if len(kept) < len(parameters):
            parameters = [parameters[place] for place in kept]
            factors = torch.stack([factors[place] for place in kept])
        self._takes_scale.set_step_scale(parameters, factors)
        self._pending = True

    def _after(self, *_: Any) -> None:  # noqa: ANN401
        if self._pending:
            self._takes_scale.clear_step_scale()
        self._pending = False


class ForeignStepScale:
    """Shortens what a step has done, p <- p0 + c (p - p0); costs one copy of the parameters."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._parameters: list[Tensor] = []
        self._start: list[Tensor] = []
        self._factors: Tensor | None = None
        self._layout: Layout | None = None
        optimizer.register_step_pre_hook(self._before)
        optimizer.register_step_post_hook(self._after)

    def set(self, parameters: Sequence[Tensor], factors: Tensor) -> None:
        """Keep the factors for the next step."""
        same = len(parameters) == len(self._parameters) and all(
            now is before for now, before in zip(parameters, self._parameters, strict=True)
        )
        if not same:
            self._parameters = list(parameters)
            self._start = [torch.empty_like(param) for param in parameters]
            sizes = [param.numel() for param in parameters]
            everywhere = [True] * len(sizes)
            self._layout = tensor_lists.layout(everywhere, sizes, device=factors.device)
        self._factors = factors

    @torch.no_grad()
    def _before(self, *_: Any) -> None:  # noqa: ANN401
        if self._factors is not None:
            torch._foreach_copy_(self._start, self._parameters)

    @torch.no_grad()
    def _after(self, *_: Any) -> None:  # noqa: ANN401
        if self._factors is not None and self._layout is not None:
            back = 1.0 - self._factors
            tensor_lists.move_(self._parameters, self._start, back, self._layout)
        self._factors = None


def step_scale_of(optimizer: Optimizer | None, apply_to: str) -> StepScale | None:
    """Return how factors act on the optimizer's steps, or None where they act on gradients.

    `apply_to` is `auto`, `grad` or `update`. Plain descent follows a factor of the gradient, so
    `auto` scales its gradients. Every other optimizer is taken for an Adam-type one, whose step
    ignores a constant factor of the gradient.

    Raises:
        ArgumentError: if the update is to be scaled and there is no optimizer.
    """
    if apply_to == "update" and optimizer is None:
        raise ArgumentError(
            "missing-argument",
            wrong="`optimizer` must be given where `apply_to` is `update`",
            found="None",
            remedy="Pass the optimizer whose steps are to be scaled, or use `grad`.",
        )
    if optimizer is None or apply_to == "grad":
        return None
    if isinstance(optimizer, TakesStepScale):
        return OwnStepScale(optimizer, optimizer)
    if apply_to == "auto" and isinstance(optimizer, SGD | ASGD):
        return None
    return ForeignStepScale(optimizer)
