"""Ways to step a simulator again and again: plain calls, or replays of a CUDA graph."""

import time

import torch
from torch import Tensor

from stormsail.core.generators import Generators
from stormsail.core.task import Step
from stormsail.market import Simulator
from stormsail.market.simulator import Info, State

_ACTIONS = 64  # drawn beforehand and used in turn
_CHECKED = 64  # replays compared with plain steps


class Plain:
    """Steps through calls of `Simulator.step`, one after another."""

    def __init__(self, simulator: Simulator, *, seed: int) -> None:
        self.simulator = simulator
        self.generator = Generators(seed, device=simulator.device).stream("bench.simulator")
        self.actions = _actions(simulator, self.generator)
        self.state = simulator.reset(self.generator)[0]
        self.taken = 0

    def __call__(self, calls: int) -> None:
        """Step that often."""
        for _ in range(calls):
            self.step()

    def step(self) -> Step[Info]:
        """Step once; return what it shows."""
        action = self.actions[self.taken % _ACTIONS]
        self.taken += 1
        self.state, shown = self.simulator.step(self.state, action, self.generator)
        return shown

    def difference(self) -> float | None:
        """There is nothing to compare with."""
        return None


class Captured(Plain):
    """Steps through replays of one CUDA graph, which writes the new state over the old one.

    `shown` holds what the last replay showed; the next one overwrites it.
    """

    def __init__(self, simulator: Simulator, *, seed: int) -> None:
        super().__init__(simulator, seed=seed)
        self.action = self.actions[0].clone()
        self._warm_up()
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(self.generator)
        with torch.cuda.graph(self.graph):
            self.shown = self._advance()

    def step(self) -> Step[Info]:
        """Replay once; return what it shows, in tensors that the next replay overwrites."""
        self.action.copy_(self.actions[self.taken % _ACTIONS])
        self.taken += 1
        self.graph.replay()
        return self.shown

    def difference(self) -> float:
        """Return by how much replays differ from plain steps with the same numbers drawn."""
        plain = Plain(self.simulator, seed=0)
        plain.state = State(*(part.clone() for part in self.state))
        plain.actions, plain.taken = self.actions, self.taken
        plain.generator.set_state(self.generator.get_state())
        plain(_CHECKED)
        self(_CHECKED)
        pairs = zip(self.state, plain.state, strict=True)
        gaps = ((ours.double() - other.double()).abs() for ours, other in pairs)
        return max(float(gap.max()) for gap in gaps if gap.numel())

    def _warm_up(self) -> None:
        """Let kernels compile and libraries set themselves up, which no capture may contain."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._advance()
        torch.cuda.current_stream().wait_stream(side)

    def _advance(self) -> Step[Info]:
        new, shown = self.simulator.step(self.state, self.action, self.generator)
        for static, part in zip(self.state, new, strict=True):
            static.copy_(part)
        return shown


def duration(stepper: Plain, calls: int) -> float:
    """Return the seconds of some calls, until the device has done them."""
    started = time.perf_counter()
    stepper(calls)
    if stepper.simulator.device.type == "cuda":
        torch.cuda.synchronize(stepper.simulator.device)
    return time.perf_counter() - started


def _actions(simulator: Simulator, generator: torch.Generator) -> tuple[Tensor, ...]:
    shape = (_ACTIONS, simulator.batch)
    count = len(simulator.config.offered_levels)
    return torch.randint(count, shape, generator=generator, device=simulator.device).unbind(0)
