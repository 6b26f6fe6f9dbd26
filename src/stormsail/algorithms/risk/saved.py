"""Checks of the saved state of a control: every tensor is one that the next update can use."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stormsail.core.errors import ArtifactError
from stormsail.core.task import DiscreteActions, MultiDiscreteActions
from stormsail.modules.agent import Agent

KINDS = {"float": torch.float32, "double": torch.float64, "int": torch.int64, "bool": torch.bool}


class Fit(NamedTuple):
    """What a saved tensor must be."""

    shape: tuple[int, ...]
    kind: str
    """One of `KINDS`; `float` takes every floating type."""


def check_tensors(saved: Mapping[str, object], wanted: Mapping[str, Fit], *, part: str) -> None:
    """Refuse tensors of other names, shapes or kinds.

    Raises:
        ArtifactError: for the first that does not fit, with its name.
    """
    if set(saved) != set(wanted):
        odd = ", ".join(sorted(map(str, set(saved) ^ set(wanted))))
        raise _unfit(part, f"others than these names: {odd}")
    for name, fit in wanted.items():
        check_tensor(saved[name], fit, name=f"{part}/{name}")


def check_tensor(saved: object, fit: Fit, *, name: str) -> None:
    """Refuse a tensor of another shape or kind.

    Raises:
        ArtifactError: if it does not fit.
    """
    if not isinstance(saved, Tensor):
        raise _unfit(name, f"a value of the type {type(saved).__name__}")
    right = saved.dtype == KINDS[fit.kind] or (fit.kind == "float" and saved.is_floating_point())
    if tuple(saved.shape) != fit.shape or not right:
        raise _unfit(name, f"{saved.dtype} of the shape {tuple(saved.shape)}, not {fit.shape}")


def check_number(
    saved: object, kind: type, *, name: str, low: float | None = None, below: float | None = None
) -> None:
    """Refuse a value of another type, or out of its bounds; an open number may be NaN.

    Raises:
        ArtifactError: if it does not fit.
    """
    if type(saved) is not kind:
        raise _unfit(name, f"a value of the type {type(saved).__name__}")
    number: Any = saved
    if (low is not None and not number >= low) or (below is not None and not number < below):
        raise _unfit(name, f"{saved}")


def like(tensors: Mapping[str, Tensor]) -> dict[str, Fit]:
    """Return what fits in the place of these tensors."""
    return {name: Fit(tuple(x.shape), kind_of(x)) for name, x in tensors.items()}


def kind_of(tensor: Tensor) -> str:
    """Return the kind of a tensor; whole numbers of any width are `int`."""
    if tensor.dtype == torch.bool:
        return "bool"
    return "float" if tensor.is_floating_point() else "int"


def row_fits(agent: Agent, actions: int, account: int) -> dict[str, Fit]:
    """Return what one remembered step is made of, column by column.

    Args:
        agent: whose steps they are.
        actions: K.
        account: P, columns of the account that are recorded for every action.
    """
    taken = agent.spec.actions.actions()
    whole = isinstance(taken, DiscreteActions)
    counted = isinstance(taken, DiscreteActions | MultiDiscreteActions)
    memory = tuple(agent.initial_memory(1).shape[1:])
    return {
        "seen": Fit((2, agent.spec.columns), "float"),
        "memory": Fit(memory, "float"),
        "reward": Fit((actions,), "float"),
        "terminated": Fit((actions,), "bool"),
        "account": Fit((actions, account), "float"),
        "return_so_far": Fit((), "float"),
        "elapsed": Fit((), "float"),
        "last": Fit((), "bool"),
        "raw_action": Fit((1 if whole else taken.count,), "int" if counted else "float"),
        "log_prob": Fit((), "float"),
        "weight": Fit((), "float"),
    }


def _unfit(part: str, problem: str) -> ArtifactError:
    return ArtifactError(
        "artifact-document",
        wrong=f"the saved state of `risk/{part}` must be one of this run",
        found=problem,
        remedy="Go back to an older generation, or start a new run.",
    )
