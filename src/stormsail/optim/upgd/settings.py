"""What the settings of the UPGD family may be, checked once for every parameter group."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from stormsail.core.errors import ChoiceError, DtypeError, RangeError, ShapeError, nearest
from stormsail.functional.optim.upgd import NORMS

NOISE_SCALES = ("absolute", "rms_update", "rms_grad")
"""Units of `sigma`: of the direction itself, or of its or the gradient's size in each tensor."""

VARIANTS = ("fixed", "official")
"""Ours, and the published implementation step by step."""

_CHOICES = {"utility_norm": NORMS, "noise_scale": NOISE_SCALES, "variant": VARIANTS}
_FLAGS = ("maximize", "capturable")


def check_settings(group: Mapping[str, Any]) -> None:
    """Refuse settings that mean nothing.

    Raises:
        RangeError: if a number is out of range.
        ShapeError: if a tensor in the place of a number has dimensions.
        ChoiceError: if a name is unknown.
        DtypeError: if a flag is not a boolean.
    """
    for name in ("lr", "sigma"):
        _check_number(name, group[name], may_be_tensor=True)
    _check_number("weight_decay", group["weight_decay"])
    _check_number("lr_compensation", group["lr_compensation"], positive=True)
    _check_decay("beta_utility", group["beta_utility"])
    if "betas" in group:
        _check_betas(group["betas"])
        _check_number("eps", group["eps"])
    for name, choices in _CHOICES.items():
        _check_choice(name, group[name], choices)
    for name in _FLAGS:
        if not isinstance(group[name], bool):
            raise DtypeError(
                wrong=f"`{name}` must be True or False",
                found=repr(group[name]),
                remedy="Pass a boolean.",
            )


def check_parameters(parameters: Iterable[Tensor]) -> None:
    """Refuse numbers that no gradient moves.

    Raises:
        DtypeError: if a parameter is not real and floating.
    """
    for parameter in parameters:
        if not parameter.is_floating_point():
            raise DtypeError(
                wrong="every parameter must be real and floating",
                found=f"{parameter.dtype} of shape {tuple(parameter.shape)}",
                remedy="Leave it out of the optimizer, or view complex numbers as real ones.",
            )


def check_gradient(parameter: Tensor, gradient: Tensor) -> None:
    """Refuse a sparse gradient: a weight without an entry would still need noise and decay.

    Raises:
        DtypeError: if the gradient is not dense.
    """
    if gradient.layout != torch.strided:
        raise DtypeError(
            wrong="every gradient must be dense",
            found=f"{gradient.layout} for a parameter of shape {tuple(parameter.shape)}",
            remedy="Build the embedding with `sparse=False`.",
        )


def check_no_amsgrad(amsgrad: object) -> None:
    """Refuse a maximum over second moments, which this family does not have.

    Raises:
        ChoiceError: if it is asked for.
    """
    if amsgrad:
        raise ChoiceError(
            wrong="`amsgrad` must be False",
            found=repr(amsgrad),
            remedy="Use `torch.optim.AdamW` for it; the gate and the noise have no such variant.",
        )


def _check_number(
    name: str, value: object, *, may_be_tensor: bool = False, positive: bool = False
) -> None:
    if isinstance(value, Tensor) and may_be_tensor:
        if value.ndim:
            raise ShapeError(
                wrong=f"`{name}` must be a number or a tensor without dimensions",
                found=f"{name} {tuple(value.shape)}",
                remedy="Use one parameter group for each value.",
            )
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0 or (positive and value == 0):  # type: ignore[arg-type,operator]  # a number by then
        least = "greater than 0" if positive else "at least 0"
        raise RangeError(
            wrong=f"`{name}` must be a finite number {least}",
            found=repr(value),
            remedy=_REMEDIES[name],
        )


_REMEDIES = {
    "lr": "Pass for example 3e-4.",
    "sigma": "Pass for example 0.001, or 0 for no noise.",
    "weight_decay": "Pass for example 0.001, or 0 for none.",
    "lr_compensation": "Pass 2, which undoes the gate of an average weight, or 1.",
    "eps": "Pass for example 1e-8.",
}


def _check_decay(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < 1.0:
        raise RangeError(
            wrong=f"`{name}` must lie in [0, 1)",
            found=repr(value),
            remedy="Pass for example 0.999.",
        )


def _check_betas(betas: object) -> None:
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        raise RangeError(
            wrong="`betas` must be two numbers",
            found=repr(betas),
            remedy="Pass for example (0.9, 0.999).",
        )
    for position, beta in enumerate(betas):
        _check_decay(f"betas[{position}]", beta)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value in choices:
        return
    close = nearest(value, choices) if isinstance(value, str) else None
    hint = f"Did you mean `{close}`?" if close else f"Choose one of {', '.join(choices)}."
    raise ChoiceError(
        wrong=f"`{name}` must be one of {', '.join(choices)}", found=repr(value), remedy=hint
    )
