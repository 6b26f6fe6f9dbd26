"""Task sequences of `bench continual`: every classification task contradicts the one before.

Shapes: S steps in a task, B samples in a step, F inputs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from stormsail.core.generators import Generators

Kind = Literal["input", "label"]
"""What is permuted from task to task."""

KINDS: tuple[Kind, ...] = ("input", "label")


@dataclass(frozen=True)
class Sizes:
    """How large the problem is; the defaults are those of the full benchmark."""

    tasks: int = 60
    steps: int = 100
    batch: int = 8
    inputs: int = 32
    classes: int = 10
    clusters: int = 4
    """Of each class, so that no linear map tells the classes apart."""
    noise: float = 1.0
    """Standard deviation around the centre of a cluster; the centres have that of 1."""
    probe: int = 512
    """Further samples of each task, on which a unit shows whether it is dead."""


class Task(NamedTuple):
    """The samples of one task in the order in which they are met, each once."""

    inputs: Tensor
    """[S, B, F]."""
    labels: Tensor
    """[S, B]."""
    probe: Tensor
    """[samples, F], never trained on."""


def tasks(kind: Kind, sizes: Sizes, *, seed: int) -> Iterator[Task]:
    """Yield the tasks of one seed.

    Gaussian clusters with fixed random centres, several for each class. Every task permutes the
    inputs (`input`: the learner must build new features from the first layer on) or the labels
    (`label`: the features stay right, only their meaning changes), after the problems of Elsayed &
    Mahmood 2024 (arXiv:2404.00781), section on input- and label-permuted data. We deviate: clusters
    instead of pictures, 8 samples a step instead of 1, and far fewer of them, so that many seeds
    fit into minutes. Both kinds meet the same samples where their seed is the same.
    """
    streams = Generators(seed)
    drawing, shuffling = streams.stream("continual.samples"), streams.stream("continual.order")
    centres = torch.randn(sizes.classes * sizes.clusters, sizes.inputs, generator=drawing)
    for _ in range(sizes.tasks):
        inputs, labels = _draw(centres, sizes.steps * sizes.batch, sizes, drawing)
        probe, _ = _draw(centres, sizes.probe, sizes, drawing)
        order = torch.randperm(sizes.inputs, generator=shuffling)
        names = torch.randperm(sizes.classes, generator=shuffling)
        if kind == "input":
            inputs, probe = inputs[:, order], probe[:, order]
        else:
            labels = names[labels]
        shape = (sizes.steps, sizes.batch)
        yield Task(inputs.view(*shape, -1), labels.view(shape), probe)


def _draw(
    centres: Tensor, count: int, sizes: Sizes, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    cluster = torch.randint(len(centres), (count,), generator=generator)
    spread = torch.randn(count, sizes.inputs, generator=generator)
    return centres[cluster] + sizes.noise * spread, cluster % sizes.classes
