"""Numbers that are not finite: found in the update that made them, kept as evidence, never saved.

Rewards and observations come from the task: there the data must change. Everything else comes from
the network: there the run goes back to where it was sound, with half the learning rate.
"""

from collections.abc import Iterable, Iterator
from dataclasses import fields

import torch
from torch import Tensor

from stormsail.algorithms.update.estimates import Estimates
from stormsail.algorithms.update.losses import Batch
from stormsail.algorithms.update.rollout import Rollout
from stormsail.core.errors import DataError
from stormsail.core.files.artifact import Contents

MAX_COLUMNS = 64
"""Sequences of a refused batch that are kept; enough to see what was wrong."""

_BATCH = "batch"


class Diverged(Exception):  # noqa: N818 - a signal to whoever can roll back, not a refusal
    """The learner is in a state from which nothing can be learned; its words say why."""


def check_rollout(rollout: Rollout) -> None:
    """Look at what was played before anything is learned from it.

    Log probabilities are left to the loss, where a sample whose ratio is not finite gets weight 0
    and is counted.

    Raises:
        DataError: if the task gave observations or rewards that are not finite.
        Diverged: if the network did, in its memory, its policy or its predictions.
    """
    seen = rollout.seen
    given = {
        "observation": rollout.observation,
        "mean of the observations": seen.mean,
        "spread of the observations": seen.m2,
        "reward": rollout.reward,
    }
    made = {
        "memory": rollout.memory,
        "parameters of the policy": rollout.parameters,
        "predictions": rollout.predicted,
        "predictions of reached states": rollout.reached,
    }
    _refuse_data(first_nonfinite(given.items()))
    _diverge(first_nonfinite(made.items()), "a rollout")


def check_estimates(estimates: Estimates) -> None:
    """Look at values, advantages and targets before units move and weights learn.

    Raises:
        Diverged: if one is not finite.
    """
    names = ("value", "raw_advantage", "returns", "target")
    arrays = ((name, getattr(estimates, name)) for name in names)
    _diverge(first_nonfinite(arrays), "the estimates")


def first_nonfinite(arrays: Iterable[tuple[str, Tensor]]) -> str | None:
    """Say which array first has entries that are not finite, and how many; None if none has.

    All are judged on their devices and read at once.
    """
    chosen = [(name, array) for name, array in arrays if array.is_floating_point()]
    if not chosen:
        return None
    device = chosen[0][1].device  # an optimizer may count its steps on the CPU
    bad = [(~array.isfinite()).sum().to(device) for _, array in chosen]
    counts = torch.stack(bad).tolist()
    for (name, array), count in zip(chosen, counts, strict=True):
        if count:
            return f"{count} of {array.numel()} numbers in `{name}`"
    return None


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
    """Return a batch as plain data for whoever looks for the cause.

    Of a large batch the sequences with numbers that are not finite come first.
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


def _refuse_data(found: str | None) -> None:
    if found is not None:
        raise DataError(
            "data-defects",
            wrong="observations and rewards of a task must be finite",
            found=f"{found} that are not",
            remedy="Look at the data and the task; what was saved before is untouched.",
        )


def _diverge(found: str | None, where: str) -> None:
    if found is not None:
        raise Diverged(f"{found} of {where} are not finite")
