"""Guards against regressions: what is made fast, timed beside the plain formula that it replaces.

A time in seconds says as much about the machine as about the code; a ratio to the plain twin, both
measured in turns in one run, does not. Each guard has a bound well above what was measured.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from stormsail.core.generators import Generators
from stormsail.functional import quantile, recurrence
from stormsail.market.features import default_features, sample_bars
from stormsail.market.interval import Interval
from stormsail.modules.memory import Memory

Run = Callable[[], Tensor]
"""Runs once; returns what both ways must agree on: the gradient of what goes in, or the result."""


@dataclass(frozen=True)
class Guard:
    """A fast way and its plain twin."""

    name: str
    make: Callable[[str], tuple[Run, Run]]
    """From a device to both, the fast one first."""
    bounds: Mapping[str, float]
    """Largest allowed share of the plain twin's time, by kind of device; held to on these alone."""


@dataclass(frozen=True)
class Held:
    """A guard that was measured."""

    name: str
    ratio: float
    """Time of the fast way over that of its plain twin: the median of the rounds."""
    bound: float

    @property
    def holds(self) -> bool:
        """Whether it is as fast as it has to be."""
        return self.ratio <= self.bound


def measure(guard: Guard, *, device: str = "cpu", rounds: int = 7) -> Held:
    """Time both ways in turns; on a CPU by processor time, which others disturb less."""
    fast, plain = guard.make(device)
    ratios = []
    for ways in [(fast, plain)] * (1 + rounds):
        spent = []
        for run in ways:
            began = _now(device)
            run()
            spent.append(_now(device) - began)
        ratios.append(spent[0] / spent[1])
    return Held(guard.name, statistics.median(ratios[1:]), guard.bounds[torch.device(device).type])


def guards(device: str) -> tuple[Guard, ...]:
    """Return those with a bound on this kind of device."""
    return tuple(guard for guard in GUARDS if torch.device(device).type in guard.bounds)


def _now(device: str) -> float:
    if torch.device(device).type == "cpu":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def _memory(device: str) -> tuple[Run, Run]:
    """An LSTM over a minibatch of CartPole: 4 columns of 128 rows, an end every 25 rows."""
    rows, columns, width = 128, 4, 64
    source = torch.Generator().manual_seed(0)
    memory = Memory(
        width, kind="lstm", width=width, layers=1, learn_initial=False, generator=source
    ).to(device)
    x = torch.randn(rows, columns, width, generator=source).to(device).requires_grad_()
    reset = (torch.rand(rows, columns, generator=source) < 0.04).to(device)
    state = memory.initial_state(columns)
    bias = memory.input_biases[0].detach() + memory.hidden_biases[0].detach()
    zeros = torch.zeros(width, device=device)

    def fast() -> Tensor:
        return torch.autograd.grad(memory(x, state, reset)[0].square().sum(), x)[0]

    def plain() -> Tensor:
        gates = torch.nn.functional.linear(x, memory.input_weights[0], bias)
        begin = (state[:, 0, 0], state[:, 0, 1])
        weight = memory.hidden_weights[0]
        output, _ = recurrence.lstm_sequence(gates, weight, *begin, reset, zeros, zeros)
        return torch.autograd.grad(output.square().sum(), x)[0]

    return fast, plain


def _quantiles(device: str) -> tuple[Run, Run]:
    """The quantile Huber loss of twin critics against its definition over all pairs."""
    samples, count, kappa = 512, 32, 0.02
    source = torch.Generator().manual_seed(0)
    target = torch.randn(samples, 1, count, generator=source).to(device)
    predicted = torch.randn(samples, 2, count, generator=source).to(device).requires_grad_()
    tau = quantile.midpoints(count, like=target)
    wide = target.expand(samples, 2, count)

    def fast() -> Tensor:
        loss = quantile.huber_loss(predicted, wide, tau, kappa=kappa)
        return torch.autograd.grad(loss.sum(), predicted)[0]

    def plain() -> Tensor:
        gap = wide[..., None, :] - predicted[..., :, None]
        size = gap.abs()
        huber = torch.where(size <= kappa, 0.5 * gap.square(), kappa * (size - 0.5 * kappa))
        share: Tensor = (tau[:, None] - (gap.detach() < 0).to(gap.dtype)).abs()
        loss = (share * huber / kappa).mean((-1, -2))
        return torch.autograd.grad(loss.sum(), predicted)[0]

    return fast, plain


def _features(_: str) -> tuple[Run, Run]:
    """The default features of one symbol beside each column by itself, masked and stacked."""
    hour = Interval.parse("1h")
    source = Generators(0).stream("bench.twins")
    bars = sample_bars(rows=33_000, symbols=1, interval=hour, generator=source)
    chosen = default_features(hour)

    def fast() -> Tensor:
        return chosen.compute(bars).values

    def plain() -> Tensor:
        columns = [bound.column(bars, 0, len(bars)) for bound in chosen.bound]
        values = [torch.where(valid & each.isfinite(), each, 0.0) for each, valid in columns]
        torch.stack([valid for _, valid in columns], -1)
        return torch.stack(values, -1)

    return fast, plain


GUARDS = (
    Guard("LSTM with resets", _memory, bounds={"cpu": 0.75}),
    Guard("quantile Huber loss", _quantiles, bounds={"cpu": 0.5}),
    Guard("feature set", _features, bounds={"cpu": 0.95}),
)
"""All guards. A kernel that comes with a plain twin adds its own here."""
