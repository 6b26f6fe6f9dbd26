"""Non-finite guard: NaN and infinity are detected in the update that made them, never saved.

Non-finite rewards and observations come from the task and are refused as bad data. Everything else
comes from the network: the run rolls back to a sound checkpoint with half the learning rate.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields

import torch
from torch import Tensor

from stormsail.algorithms.update.estimates import Estimates
from stormsail.algorithms.update.losses import Batch
from stormsail.algorithms.update.rollout import Rollout
from stormsail.core.errors import DataError
from stormsail.core.files.artifact import Contents

MAX_COLUMNS = 64
"""Sequences of a refused batch that are kept for the analysis."""

_BATCH = "batch"


class Diverged(Exception):  # noqa: N818 - a signal to the trainer, which rolls back
    """The learner's state is not finite; the message says which part."""


def check_rollout(rollout: Rollout) -> None:
    """Check a rollout before it is learned from.

    Log probabilities are left to the loss, where a sample with a non-finite ratio gets weight 0 and
    is counted.

    Raises:
        DataError: if the task gave non-finite observations or rewards.
        Diverged: if memory, policy or predictions of the network are not finite.
    """
    given, made = _given(rollout), _made(rollout)
    problem = first_nonfinite((*given.items(), *made.items()))
    if problem is not None:
        _refuse_data(first_nonfinite(given.items()))
        _diverge(problem, "a rollout")


def check_estimates(estimates: Estimates) -> None:
    """Check values, advantages and targets before the return scale and the weights change.

    Raises:
        Diverged: if one is not finite.
    """
    _diverge(first_nonfinite(estimate_arrays(estimates)), "the estimates")


def _given(rollout: Rollout) -> dict[str, Tensor]:
    """Return what comes from the task."""
    seen = rollout.seen
    return {
        "observation": rollout.observation,
        "mean of the observations": seen.mean,
        "spread of the observations": seen.m2,
        "reward": rollout.reward,
    }


def _made(rollout: Rollout) -> dict[str, Tensor]:
    """Return what comes from the network."""
    return {
        "memory": rollout.memory,
        "parameters of the policy": rollout.parameters,
        "predictions": rollout.predicted,
        "predictions of next states": rollout.next_predicted,
    }


def rollout_arrays(rollout: Rollout) -> list[tuple[str, Tensor]]:
    """Return everything of a rollout that must be finite, by name."""
    return [*_given(rollout).items(), *_made(rollout).items()]


def estimate_arrays(estimates: Estimates) -> list[tuple[str, Tensor]]:
    """Return all estimates that must be finite, by name."""
    names = ("value", "raw_advantage", "returns", "target")
    return [(name, getattr(estimates, name)) for name in names]


def first_nonfinite(arrays: Iterable[tuple[str, Tensor]]) -> str | None:
    """Describe the first array with non-finite entries and their number; None if none has any.

    Only where one is not finite all are counted, on their devices, and read at once.
    """
    chosen = [
        (name, array) for name, array in arrays if array.is_floating_point() and array.numel()
    ]
    if all(bool(flag) for flag in all_finite([array for _, array in chosen])):
        return None
    device = chosen[0][1].device  # an optimizer may count its steps on the CPU
    bad = [(~array.isfinite()).sum().to(device) for _, array in chosen]
    counts = torch.stack(bad).tolist()
    for (name, array), count in zip(chosen, counts, strict=True):
        if count:
            return f"{count} of {array.numel()} numbers in `{name}`"
    return None


def all_finite(arrays: Sequence[Tensor]) -> list[Tensor]:
    """Return a flag of each device: whether the norms of all floating arrays there are finite.

    A norm is one pass and one kernel for many arrays, and finite only where all of an array is.
    """
    by_device: dict[torch.device, list[Tensor]] = {}
    for array in arrays:
        if array.numel():
            by_device.setdefault(array.device, []).append(array)
    return [are_finite(own) for own in by_device.values()]


def are_finite(arrays: Sequence[Tensor]) -> Tensor:
    """Return whether all floating arrays of one device are finite, as `finite_norms` finds out."""
    return finite_norms(arrays).all()


def finite_norms(arrays: Sequence[Tensor]) -> Tensor:
    """Return which floating arrays of one device are finite, by their types, without empty ones.

    From a norm that does not overflow where the entries do not: the largest size, or on a CPU the
    Euclidean norm of float32 in float64, which is found in a ninth of the time.
    """
    kinds: dict[torch.dtype, list[Tensor]] = {}
    for array in arrays:
        if array.numel():
            kinds.setdefault(array.dtype, []).append(array)
    norms = [torch.stack(_norms(own)).double() for own in kinds.values()]
    return torch.cat(norms).isfinite()


def _norms(arrays: list[Tensor]) -> tuple[Tensor, ...]:
    """Return the norms of arrays of one type and device, see `finite_norms`."""
    if arrays[0].is_cpu and arrays[0].dtype != torch.float64:
        return torch._foreach_norm(arrays, 2, dtype=torch.float64)
    return torch._foreach_norm(arrays, math.inf)


def tensors_of(value: object, path: str) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of a nested state with its path."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tensors_of(item, f"{path}/{key}")
    elif isinstance(value, tuple | list):
        names = getattr(value, "_fields", range(len(value)))
        for key, item in zip(names, value, strict=True):
            yield from tensors_of(item, f"{path}/{key}")


def refused_batch(batch: Batch, document: dict[str, object]) -> Contents:
    """Return the contents of an artifact with a refused batch, for the analysis of the cause.

    Of a large batch the sequences with non-finite numbers are kept.
    """
    bad = torch.zeros(batch.weight.shape[1], dtype=torch.int64, device=batch.weight.device)
    for field in fields(batch):
        array = getattr(batch, field.name)
        if array.is_floating_point() and array.numel():
            axis = 0 if field.name == "memory" else 1
            others = [place for place in range(array.ndim) if place != axis]
            bad += (~array.isfinite()).sum(others)
    order = bad.argsort(descending=True, stable=True)[:MAX_COLUMNS].sort().values
    tensors = {
        field.name: getattr(batch, field.name).index_select(
            0 if field.name == "memory" else 1, order
        )
        for field in fields(batch)
    }
    return Contents(
        tensors={_BATCH: {**tensors, "sequences": order}},
        documents={"refusal": document},
        allow_nonfinite=(_BATCH,),
    )


def _refuse_data(problem: str | None) -> None:
    if problem is not None:
        raise DataError(
            "data-defects",
            wrong="observations and rewards of a task must be finite",
            found=f"{problem} that are not",
            remedy="Look at the data and the task; what was saved before is untouched.",
        )


def _diverge(problem: str | None, where: str) -> None:
    if problem is not None:
        raise Diverged(f"{problem} of {where} are not finite")
