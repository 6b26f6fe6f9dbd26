"""Runs of `bench continual`: networks that learn a sequence of tasks, each with its optimizer.

Runs that differ in seed and setting only stand side by side: J networks share every forward and
backward pass, which for networks this small costs little more than one, and nothing else.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from stormsail.bench.optimizers.continual_problem import Kind, Sizes, tasks
from stormsail.core.generators import Generators
from stormsail.optim import UPGD, AdaptiveUPGD, VarianceGradientScaler

HIDDEN = (64, 32)
"""Units of the hidden layers."""


@dataclass(frozen=True)
class Method:
    """An optimizer, the rates it may use, and the one setting of its own that is tried as well."""

    name: str
    rates: tuple[float, ...]
    knob: str = ""
    """Argument of the optimizer, empty for none."""
    knobs: tuple[float | None, ...] = (None,)
    """Its values, the default first."""


_DESCENT = (0.03, 0.1, 0.3, 1.0)
_ADAM = (0.001, 0.003, 0.01, 0.03)
_DECAYS = (0.01, 0.1, 1.0)
_NOISES = (0.001, 0.03, 0.3)

METHODS = (
    Method("SGD", _DESCENT),
    Method("Adam", _ADAM),
    Method("AdamW", _ADAM, "weight_decay", _DECAYS),
    Method("UPGD", _DESCENT, "sigma", _NOISES),
    Method("AdaptiveUPGD", _ADAM, "sigma", _NOISES),
)
_ELEMENTWISE: dict[str, type[torch.optim.Optimizer]] = {
    "SGD": torch.optim.SGD,
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
}
_BY_UTILITY: dict[str, type[UPGD | AdaptiveUPGD]] = {"UPGD": UPGD, "AdaptiveUPGD": AdaptiveUPGD}


@dataclass(frozen=True)
class Variant:
    """A way of learning: a line of the table."""

    method: Method
    scaled: bool = False
    """Whether the steps pass the variance gradient scaler, with its defaults."""
    fresh: bool = False
    """Whether every task gets a new network and a new optimizer: nothing to lose or to keep."""

    @property
    def name(self) -> str:
        """What the table calls it."""
        return f"{self.method.name}{' + VGS' * self.scaled}{', new each task' * self.fresh}"


@dataclass(frozen=True)
class Setting:
    """Learning rate and knob of a variant."""

    rate: float
    knob: float | None


@dataclass(frozen=True)
class Job:
    """Everything that one run depends on."""

    kind: Kind
    variant: Variant
    setting: Setting
    seed: int
    sizes: Sizes


@dataclass(frozen=True)
class Outcome:
    """Result of a run, one entry for each task."""

    accuracy: tuple[float, ...]
    """Share of right answers given before the sample was learned from."""
    dead: tuple[float, ...]
    """Share of hidden units that are 0 on every sample of the probe, at the task's end."""


class Networks:
    """J multilayer perceptrons with rectified hidden units, side by side.

    Weights and biases are uniform within ± 1/√(inputs of the layer), as `torch.nn.Linear` draws.
    The parameters of a member are views of the stacked ones, and so are their gradients: an
    optimizer of one member sees a network of its own.

    Args:
        sizes: inputs, hidden units and classes.
        generators: one for each member.
    """

    def __init__(self, sizes: Sequence[int], generators: Sequence[torch.Generator]) -> None:
        self._layers: list[tuple[Tensor, Tensor]] = []
        self.members: list[dict[str, nn.Parameter]] = [{} for _ in generators]
        for place, (wide, narrow) in enumerate(pairwise(sizes)):
            bound = 1.0 / math.sqrt(wide)
            stacks = []
            for name, shape in (("weight", (narrow, wide)), ("bias", (narrow,))):
                drawn = [
                    torch.empty(shape).uniform_(-bound, bound, generator=g) for g in generators
                ]
                stacks.append(self._stack(f"{name}{place}", torch.stack(drawn)))
            self._layers.append((stacks[0], stacks[1]))

    def _stack(self, name: str, values: Tensor) -> Tensor:
        stack = values.requires_grad_()
        stack.grad = torch.zeros_like(stack)
        parts = zip(self.members, stack.detach(), stack.grad, strict=True)
        for member, part, grad in parts:
            member[name] = nn.Parameter(part)
            member[name].grad = grad
        return stack

    def hidden(self, inputs: Tensor) -> list[Tensor]:
        """Return the activities of each hidden layer, [J, B, units], for [J, B, F]."""
        layers: list[Tensor] = []
        for weight, bias in self._layers[:-1]:
            inputs = _affine(inputs, weight, bias).relu()
            layers.append(inputs)
        return layers

    def scores(self, inputs: Tensor) -> Tensor:
        """Return one score for each class, [J, B, classes]."""
        return _affine(self.hidden(inputs)[-1], *self._layers[-1])

    def backward(self, scores: Tensor, labels: Tensor) -> None:
        """Put the gradient of each member's own mean loss in the place of the last one."""
        for stack in (part for layer in self._layers for part in layer):
            if stack.grad is not None:
                stack.grad.zero_()
        total = nnf.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum")
        (total / labels.shape[1]).backward()

    @torch.no_grad()
    def dead_share(self, probe: Tensor) -> Tensor:
        """Return the share of each member's hidden units that answer none of the samples, [J]."""
        alive = torch.cat([layer.amax(1) > 0 for layer in self.hidden(probe)], dim=1)
        return 1.0 - alive.double().mean(1)


def _affine(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.baddbmm(bias.unsqueeze(1), inputs, weight.transpose(1, 2))  # [J, B, units]


class Learners:
    """Networks side by side and their optimizers.

    SGD, Adam and AdamW move every number by itself, so one object moves all members, in groups of
    equal setting. UPGD compares the weights of a network with one another: one for each member.
    Factors of the scaler belong to a tensor, whatever other tensors it watches.
    """

    def __init__(self, jobs: Sequence[Job], streams: Sequence[Generators]) -> None:
        first = jobs[0]
        layers = (first.sizes.inputs, *HIDDEN, first.sizes.classes)
        generators = [stream.stream("continual.network") for stream in streams]
        self.networks = Networks(layers, generators)
        members = self.networks.members
        method = first.variant.method
        if method.name in _ELEMENTWISE:
            groups = [
                {"params": list(member.values()), **_options(job)}
                for job, member in zip(jobs, members, strict=True)
            ]
            kind = _ELEMENTWISE[method.name]
            together = {
                f"{place}.{name}": tensor
                for place, member in enumerate(members)
                for name, tensor in member.items()
            }
            moved = [(kind(_merged(groups), fused=True), together)]  # type: ignore[call-arg]
        else:
            moved = [
                (_by_utility(job, member, stream), member)
                for job, member, stream in zip(jobs, members, streams, strict=True)
            ]
        self._optimizers = [optimizer for optimizer, _ in moved]
        self._scalers = [
            VarianceGradientScaler(named.items(), optimizer=optimizer)
            for optimizer, named in moved
            if first.variant.scaled
        ]

    def learn(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Answer and learn from every sample once; return the share of right answers, [J].

        Args:
            inputs: [S, J, B, F].
            labels: [S, J, B].
        """
        right = torch.zeros(labels.shape[1], dtype=torch.int64)
        for samples, classes in zip(inputs.unbind(), labels.unbind(), strict=True):
            scores = self.networks.scores(samples)
            right += (scores.detach().argmax(-1) == classes).sum(-1)
            self.networks.backward(scores, classes)
            for scaler in self._scalers:
                scaler.step()
            for optimizer in self._optimizers:
                optimizer.step()
        return right.double() / (labels.shape[0] * labels.shape[2])


def _options(job: Job) -> dict[str, float]:
    options = {"lr": job.setting.rate}
    if job.setting.knob is not None:
        options[job.variant.method.knob] = job.setting.knob
    return options


def _merged(groups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join the groups of equal setting: each costs a call."""
    merged: dict[tuple[object, ...], dict[str, Any]] = {}
    for group in groups:
        key = tuple(value for name, value in group.items() if name != "params")
        merged.setdefault(key, {**group, "params": []})["params"].extend(group["params"])
    return list(merged.values())


def _by_utility(
    job: Job, member: dict[str, nn.Parameter], streams: Generators
) -> torch.optim.Optimizer:
    generator = streams.stream("continual.perturbation")
    kind = _BY_UTILITY[job.variant.method.name]
    return kind(member.values(), generator=generator, **_options(job))  # type: ignore[arg-type]


def run(jobs: Sequence[Job]) -> list[Outcome]:
    """Return the outcome of each job; jobs differ in seed and setting only.

    An outcome depends on its own job, up to the rounding of the batched products.
    """
    streams = [Generators(job.seed) for job in jobs]
    learners = Learners(jobs, streams)
    sequences = [tasks(job.kind, job.sizes, seed=job.seed) for job in jobs]
    accuracy, dead = [], []
    for number, batch in enumerate(zip(*sequences, strict=True)):
        if jobs[0].variant.fresh and number:
            learners = Learners(jobs, streams)
        inputs = torch.stack([task.inputs for task in batch], dim=1)  # [S, J, B, F]
        labels = torch.stack([task.labels for task in batch], dim=1)  # [S, J, B]
        accuracy.append(learners.learn(inputs, labels))
        dead.append(learners.networks.dead_share(torch.stack([task.probe for task in batch])))
    shares = zip(torch.stack(accuracy, 1).tolist(), torch.stack(dead, 1).tolist(), strict=True)
    return [Outcome(tuple(right), tuple(still)) for right, still in shares]
