"""`stormsail bench optim`: the time of one optimizer step, as ratios to torch's AdamW.

The network is that of an agent with a recurrent memory: 2 million parameters in 24 tensors. On CUDA
every way is captured in a graph, so that launching from Python is not what is measured.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from stormsail.core.generators import Generators
from stormsail.optim import UPGD, AdaptiveUPGD, GradientPipeline, VarianceGradientScaler

LAYERS = ((1024, 64), *((1024, 256),) * 7)
"""Weights of four LSTM layers of 256 units, each with two biases of 1024."""
HEADS = (256, 5, 256, 32)
"""Rows of the linear layers behind them, over 256 inputs each, with a bias."""

REFERENCE = {"cpu": "AdamW, foreach", "cuda": "AdamW, fused"}
LEARNING_RATE = 1e-6
"""So small that thousands of measured steps change nothing."""

Step = Callable[[], object]


@dataclass(frozen=True)
class StepTime:
    """One way to take a step."""

    way: str
    microseconds: float
    ratio: float
    """To the reference, from the same run."""
    warmup_seconds: float
    """Compilation, capture and first calls, not counted."""


@dataclass(frozen=True)
class Replay:
    """A captured step; the graph knows addresses only, so the tensors must live as long."""

    graph: torch.cuda.CUDAGraph
    step: Step

    def __call__(self) -> None:
        """Take the step again."""
        self.graph.replay()


def shapes() -> list[tuple[int, ...]]:
    """Return the shapes of the network's tensors."""
    memory: list[tuple[int, ...]] = [shape for pair in LAYERS for shape in (pair, (pair[0],))]
    return memory + [shape for rows in HEADS for shape in ((rows, 256), (rows,))]


def network(device: str, *, seed: int, scale: float = 1.0) -> list[nn.Parameter]:
    """Return parameters with gradients."""
    stream = Generators(seed, device=device).stream("bench.optim")
    params = []
    for shape in shapes():
        kept = tuple(max(1, round(side * scale)) for side in shape)
        param = nn.Parameter(0.05 * torch.randn(kept, generator=stream, device=device))
        param.grad = 0.01 * torch.randn(kept, generator=stream, device=device)
        params.append(param)
    return params


def ways(
    device: str, *, compiled: bool, seed: int, scale: float = 1.0
) -> Iterator[tuple[str, Callable[[], tuple[Step, torch.Generator | None]]]]:
    """Yield each way's name and what makes its step, with the generator that it draws from."""
    on_cuda = device.partition(":")[0] == "cuda"
    make = partial(network, device, seed=seed, scale=scale)
    rate = torch.tensor(LEARNING_RATE, device=device) if on_cuda else LEARNING_RATE

    def plain(kind: Callable[..., Optimizer], **options: bool) -> tuple[Step, None]:
        return kind(make(), lr=rate, **options).step, None

    def ours(kind: type[UPGD | AdaptiveUPGD]) -> tuple[Step, torch.Generator]:
        optimizer = kind(make(), lr=rate, seed=seed, capturable=on_cuda)
        return optimizer.step, optimizer.generator

    def pipeline(*, scaled: bool, compiled: bool) -> tuple[Step, torch.Generator]:
        params: list[Tensor] = [*make()]
        optimizer = AdaptiveUPGD(params, lr=rate, seed=seed, capturable=on_cuda)
        scaler = VarianceGradientScaler(params, optimizer=optimizer) if scaled else None
        whole = GradientPipeline(params, optimizer, scaler=scaler, compiled=compiled)
        return whole.step, optimizer.generator

    graph = {"capturable": True} if on_cuda else {}
    yield "AdamW, foreach", partial(plain, AdamW, foreach=True, **graph)
    yield "AdamW, fused", partial(plain, AdamW, fused=True, **graph)
    yield "UPGD", partial(ours, UPGD)
    yield "AdaptiveUPGD", partial(ours, AdaptiveUPGD)
    yield "AdaptiveUPGD, guard, VGS, clip", partial(pipeline, scaled=True, compiled=False)
    if compiled:
        yield "AdaptiveUPGD, guard, clip, compiled", partial(pipeline, scaled=False, compiled=True)
        yield (
            "AdaptiveUPGD, guard, VGS, clip, compiled",
            partial(pipeline, scaled=True, compiled=True),
        )


def captured(step: Step, generator: torch.Generator | None) -> Step:
    """Return the replay of a step, after a few that set everything up."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    if generator is not None:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        step()
    return Replay(graph, step)


def step_times(
    *,
    device: str = "cpu",
    compiled: bool = True,
    seconds: float = 2.0,
    repeats: int = 50,
    seed: int = 0,
    scale: float = 1.0,
) -> list[StepTime]:
    """Return the time of every way, taking turns in short stretches.

    The fastest stretch of each counts, because whatever else runs on a machine can only lengthen
    one; and all take turns, so that a slow minute falls on all of them.
    """
    kind = device.partition(":")[0]
    steps: dict[str, Step] = {}
    warmups: dict[str, float] = {}
    for name, make in ways(device, compiled=compiled, seed=seed, scale=scale):
        began = time.perf_counter()
        step, generator = make()
        steps[name] = captured(step, generator) if kind == "cuda" else step
        _duration(steps[name], 2, kind)
        warmups[name] = time.perf_counter() - began
    calls = {
        name: max(1, round(seconds / repeats / _duration(step, 1, kind)))
        for name, step in steps.items()
    }
    best = dict.fromkeys(steps, float("inf"))
    for _ in range(repeats):
        for name, step in steps.items():
            best[name] = min(best[name], _duration(step, calls[name], kind) / calls[name])
    reference = best[REFERENCE[kind]]
    return [StepTime(n, 1e6 * best[n], best[n] / reference, warmups[n]) for n in steps]


def _duration(step: Step, calls: int, kind: str) -> float:
    """Return the seconds of some steps, until the device has done them."""
    started = time.perf_counter()
    for _ in range(calls):
        step()
    if kind == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started
