"""What several processes bring together in an update, and which share of it is a process's own.

Each steps its own columns of the environments; the rollout is then gathered, so that estimates,
statistics, controllers and metrics are those of all columns, computed alike in every process. Of a
minibatch each learns from its own share of the sequences: gradients and sums are added up.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import reduce
from typing import Any

import torch

from stormsail.algorithms.update.losses import Batch, Sums
from stormsail.algorithms.update.rollout import EnvState, Rollout
from stormsail.core.errors import RangeError
from stormsail.core.group import Group
from stormsail.core.task import Columns
from stormsail.functional import statistics
from stormsail.functional.statistics import Moments
from stormsail.optim.pipeline import GradientPipeline

Collected = tuple[EnvState, Rollout]


def together(
    group: Group, env_state: EnvState, collect: Callable[[EnvState], Collected]
) -> Collected:
    """Take the steps of all environments; return the state after them and the whole rollout.

    Args:
        group: the processes.
        env_state: of all environments.
        collect: takes the steps of this process's own.

    Raises:
        RangeError: if the task refused an action, in whichever process.
    """
    if group.size == 1:
        return collect(env_state)
    own: EnvState = _each(env_state, lambda values: group.columns(len(values)).of(values))
    failure: RangeError | None = None
    try:
        after, rollout = collect(own)
    except RangeError as error:
        failure = error
    failed = group.gather(torch.tensor([failure is not None]))
    if failure is not None:
        raise failure
    if bool(failed.any()):
        raise RangeError(
            wrong="every action must be one that the task takes",
            found=f"another one in process {int(failed.int().argmax())}",
            remedy="Its message says which.",
        )
    whole: EnvState = _each(after, group.gather)
    return whole, _gathered(rollout, group)


def _gathered(rollout: Rollout, group: Group) -> Rollout:
    """Return the rollout of all environments; time comes first, so they are the second axis."""
    parts = {
        field.name: _each(getattr(rollout, field.name), lambda values: group.gather(values, 1))
        for field in fields(rollout)
        if field.name != "seen"
    }
    every = Moments(*(group.gather(part[None]) for part in rollout.seen))
    seen = reduce(statistics.merge, (Moments(*part) for part in zip(*every, strict=True)))
    return Rollout(**parts, seen=seen)


def _each(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:  # noqa: ANN401 - a nest
    """Return a nest of tables, named tuples and tensors with every tensor changed."""
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: _each(part, change) for name, part in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        return replace(value, **{name: _each(getattr(value, name), change) for name in names})
    return type(value)(*(_each(part, change) for part in value))


def own_sequences(batch: Batch, columns: Columns) -> Batch:
    """Return the sequences of a minibatch that a process learns from, as views."""
    return Batch(
        **{
            field.name: columns.of(getattr(batch, field.name), 0 if field.name == "memory" else 1)
            for field in fields(batch)
        }
    )


def added(sums: Sums, pipeline: GradientPipeline, group: Group) -> Sums:
    """Add up the gradients of all processes in place; return their sums added up.

    The largest of what is a maximum. Every process adds in the same order.
    """
    groups = pipeline.optimizer.param_groups
    given = [parameter.grad for part in groups for parameter in part["params"]]
    group.add([gradient for gradient in given if gradient is not None])
    rows = group.gather(torch.cat([part.reshape(-1).double() for part in sums])[None])
    pieces = rows.split([part.numel() for part in sums], 1)
    joint = Sums(
        *(
            piece.sum(0).reshape(own.shape).to(own.dtype)
            for piece, own in zip(pieces, sums, strict=True)
        )
    )
    largest = pieces[Sums._fields.index("log_ratio_max")].amax()
    return joint._replace(log_ratio_max=largest.to(sums.log_ratio_max.dtype))
