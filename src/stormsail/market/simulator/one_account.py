"""One account on plain numbers: `Simulator.transition` without the overhead of tensors."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.core.machine_code.graph_numbers import Number, number_graph
from stormsail.core.task import Step
from stormsail.market.simulator.info import Info
from stormsail.market.simulator.simulator import Simulator, flat

_SHOWN = len(Step._fields) - 2  # reward and flags, between observation and info
_EVENTS = Info._fields[:-1]
"""Names of the numbers of an info; the terminal observation comes last and is the step's own."""


class NumberStep(NamedTuple):
    """What a step of one account shows, as plain numbers."""

    observation: tuple[float, ...]
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Number]
    """By the names of `Info`, without `terminal_observation`, which is the observation."""


class OneAccount:
    """The transition of a simulator of one environment, recorded once and run on Python numbers.

    The account's episode must be running: what a step after its end would do is left out.
    Equal to `Simulator.transition` to the last bit, and some twenty times as fast for one account;
    a batch is better off with tensors.

    Args:
        simulator: of one environment, on a CPU.
    """

    def __init__(self, simulator: Simulator) -> None:
        state, action, uniform = simulator.example()
        running = torch.zeros_like(state.done)
        transition = flat(simulator.transition)

        def within(*tensors: Tensor) -> Sequence[Tensor]:
            *account, action, uniform = tensors
            return transition(*account, running, action, uniform)

        self._run = number_graph(within, (*state[:-1], action, uniform))
        self._size = simulator.observation_size
        self._width = sum(tensor.numel() for tensor in state)

    def step(
        self, state: tuple[Number, ...], action: Number, uniform: list[float]
    ) -> tuple[tuple[Number, ...], NumberStep]:
        """Return the next state, numbers in the order of `State`, and what it shows."""
        numbers = self._run(*state[:-1], action, *uniform)
        shown = self._width + self._size
        reward, terminated, truncated = numbers[shown : shown + _SHOWN]
        info = dict(zip(_EVENTS, numbers[shown + _SHOWN :], strict=False))
        observation = numbers[self._width : shown]
        step = NumberStep(observation, reward, bool(terminated), bool(truncated), info)
        return numbers[: self._width], step
