"""What bounds an update: operations and bytes of its phases, and the ceilings of the device.

Both numbers are counted from shapes, not measured: they are what the work needs, whatever the
program does on the way. Ceilings are measured in the same run as the times that are held to them.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from stormsail.algorithms.config import TrainConfig
from stormsail.modules.agent import Agent

NUMBER = 4
"""Bytes of a float32."""

TRAVELS = 4
"""A layer's output is written on the way forward and read on the way back; so is its gradient."""

PASSES = 12
"""Of each weight in a minibatch: read forward and back, its gradient written and read, three
tensors of AdaptiveUPGD read and written, the weight read and written by the step."""

_SIDES = {"cpu": 1024, "cuda": 8192}
_COPIED = {"cpu": 1 << 26, "cuda": 1 << 30}
_REPEATS = 5


@dataclass(frozen=True)
class Work:
    """What a phase of one update needs at least."""

    operations: float
    """Floating-point operations of its matrix products, a product and a sum counting 2."""
    bytes: float
    """Read and written, if nothing travels twice and no intermediate result of a layer at all."""


@dataclass(frozen=True)
class Ceilings:
    """What the device does at best."""

    operations: float
    """A second, in products of large float32 matrices as torch is set up."""
    bytes: float
    """A second, read and written by a large copy."""


def work(agent: Agent, config: TrainConfig) -> Mapping[str, Work]:
    """Return the work of a rollout and of the epochs.

    A row of a matrix product with W of [outputs, inputs] is 2 outputs inputs operations; on the way
    back there are two of them, for the gradients of input and weight. Every matrix is used once a
    row.
    """
    ppo = config.ppo
    matrices = [p.shape for p in agent.parameters() if p.ndim == 2]
    products = sum(2.0 * outputs * inputs for outputs, inputs in matrices)
    outputs = sum(size[0] for size in matrices)
    weights = sum(p.numel() for p in agent.parameters())
    rows = ppo.n_steps * ppo.n_envs
    minibatches = minibatches_of(config)
    state = 2 * agent.initial_memory(1).numel()
    width = agent.spec.columns + outputs
    return {
        "rollout": Work(
            operations=rows * products,
            bytes=NUMBER * (ppo.n_steps * weights + rows * (width + state)),
        ),
        "epochs": Work(
            operations=3.0 * ppo.n_epochs * rows * products,
            bytes=NUMBER
            * (
                ppo.n_epochs * rows * (agent.spec.columns + TRAVELS * outputs)
                + minibatches * PASSES * weights
            ),
        ),
    }


def minibatches_of(config: TrainConfig) -> int:
    """Return the number of minibatches in all epochs of an update."""
    ppo = config.ppo
    sequences = ppo.n_envs * (ppo.n_steps // (ppo.sequence_length or ppo.n_steps))
    return ppo.n_epochs * -(-sequences // ppo.batch_size)


def ceilings(device: str) -> Ceilings:
    """Measure the device."""
    kind = torch.device(device).type
    side, count = _SIDES[kind], _COPIED[kind] // NUMBER
    square = torch.rand(side, side, device=device)
    result = torch.empty_like(square)
    source, target = (torch.empty(count, device=device) for _ in range(2))
    source.zero_()
    return Ceilings(
        operations=2.0 * side**3 / _shortest(lambda: torch.mm(square, square, out=result), kind),
        bytes=2.0 * NUMBER * count / _shortest(lambda: target.copy_(source), kind),
    )


def _shortest(call: Callable[[], object], kind: str) -> float:
    durations = []
    for _ in range(1 + _REPEATS):
        began = time.perf_counter()
        call()
        if kind == "cuda":
            torch.cuda.synchronize()
        durations.append(time.perf_counter() - began)
    return min(durations[1:])
