"""Ways to bring a factor for each tensor into an optimizer's next step."""

from collections.abc import Sequence
from typing import Any, Literal, TypeGuard

import torch
from torch import Tensor
from torch.optim import ASGD, SGD, Optimizer

from stormsail.core.errors import ArgumentError
from stormsail.optim import tensor_lists
from stormsail.optim.tensor_lists import Layout


class StepScaled(Optimizer):
    """An optimizer that multiplies each tensor's step, weight decay aside, by a factor."""

    def set_step_scale(self, parameters: Sequence[Tensor], scales: Tensor) -> None:
        """Use these factors from the next step on."""
        raise NotImplementedError

    def clear_step_scale(self) -> None:
        """Use none from the next step on."""
        raise NotImplementedError


def takes_step_scale(optimizer: Optimizer | None) -> TypeGuard[StepScaled]:
    """Say whether an optimizer takes factors itself; any class may, not only those of here."""
    return hasattr(optimizer, "set_step_scale") and hasattr(optimizer, "clear_step_scale")


class OnGradient:
    """The factors act on the gradients; the optimizer never knows."""

    acts_on: Literal["grad", "update"] = "grad"

    def __init__(self, optimizer: Optimizer | None) -> None:
        self.optimizer = optimizer

    def set(self, parameters: Sequence[Tensor], factors: Tensor) -> None:
        """Take factors for the next step."""
        raise NotImplementedError


class OnOwnStep(OnGradient):
    """Hands the factors to an optimizer that takes them, and takes them back after one step."""

    acts_on = "update"

    def __init__(self, optimizer: StepScaled) -> None:
        super().__init__(optimizer)
        self._own = optimizer
        self._pending = False
        optimizer.register_step_post_hook(self._after)

    def set(self, parameters: Sequence[Tensor], factors: Tensor) -> None:
        """Hand the factors over for the next step.

        Raises:
            ArgumentError: if the optimizer has none of the parameters.
        """
        own = {id(one) for group in self._own.param_groups for one in group["params"]}
        kept = [place for place, one in enumerate(parameters) if id(one) in own]
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
        self._own.set_step_scale(parameters, factors)
        self._pending = True

    def _after(self, *_: Any) -> None:  # noqa: ANN401
        if self._pending:
            self._own.clear_step_scale()
        self._pending = False


class OnForeignStep(OnGradient):
    """Shortens what a step has done, p <- p0 + c (p - p0); costs one copy of the parameters."""

    acts_on = "update"

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(optimizer)
        self._parameters: list[Tensor] = []
        self._start: list[Tensor] = []
        self._factors: Tensor | None = None
        self._layout: Layout | None = None
        optimizer.register_step_pre_hook(self._before)
        optimizer.register_step_post_hook(self._after)

    def set(self, parameters: Sequence[Tensor], factors: Tensor) -> None:
        """Keep the factors for the next step."""
        same = len(parameters) == len(self._parameters) and all(
            one is other for one, other in zip(parameters, self._parameters, strict=True)
        )
        if not same:
            self._parameters = list(parameters)
            self._start = [torch.empty_like(one) for one in parameters]
            sizes = [one.numel() for one in parameters]
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


def applier(optimizer: Optimizer | None, apply_to: str) -> OnGradient:
    """Return the way that fits the optimizer; `apply_to` is `auto`, `grad` or `update`.

    Plain descent follows a factor of the gradient, so `auto` scales its gradients. Every other
    optimizer is taken for an Adam-type one, whose step ignores a constant factor of the gradient.

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
        return OnGradient(optimizer)
    if takes_step_scale(optimizer):
        return OnOwnStep(optimizer)
    if apply_to == "auto" and isinstance(optimizer, SGD | ASGD):
        return OnGradient(optimizer)
    return OnForeignStep(optimizer)
