"""`ControlTask`, the base class of control tasks: starts, time limits, ends, masked velocities.

B environments, S physical quantities, F observed features, A action dimensions. A subclass has its
equations of motion (`_move`), its observation (`_observe`) and a box of starts; all else is here.

Nothing in `transition` reads a value, so a CUDA graph captures it and `torch.compile` traces it.
"""

import copy
from abc import ABC, abstractmethod
from typing import NamedTuple, Self

import torch
from torch import Tensor

from stormsail.core.errors import ChoiceError, DtypeError, RangeError, ShapeError, nearest
from stormsail.core.machine_code.graph_compiler import is_traced
from stormsail.core.task import Actions, Columns, Step

_DTYPES = (torch.float32, torch.float64)


class ControlState(NamedTuple):
    """State of B episodes."""

    physical: Tensor
    """[B, S] positions, angles and their rates."""
    elapsed: Tensor
    """[B] int64: steps done in this episode."""
    over: Tensor
    """[B] bool: the last step ended the episode, so the next one starts another."""


class ControlInfo(NamedTuple):
    """Further results of a step."""

    sample_weight: Tensor
    """[B]: 1, but 0 where the action was ignored because a new episode starts."""
    bad_action: Tensor
    """[B] bool: the action was invalid and another one was done in its place."""


class ControlTask(ABC):
    """B copies of one task that step together.

    Args:
        batch: number of environments B, at least 1.
        device: where all tensors live; generators must live there too.
        dtype: float32 or float64, of physics, observations, rewards and continuous actions.
        hide: names of observed features that are shown as 0 always. The shape stays.

    Raises:
        RangeError: for a batch below 1.
        DtypeError: for another dtype.
        ChoiceError: for a hidden name that is not observed.
    """

    physical_names: tuple[str, ...]
    observation_names: tuple[str, ...]
    velocity_names: tuple[str, ...]
    """Those of `observation_names` that the velocity-masked version hides."""
    actions: Actions
    limit: int
    """Steps after which an episode is truncated."""
    low: tuple[float, ...]
    """Lower bounds of the uniform distribution of starts, one for each physical quantity."""
    high: tuple[float, ...]
    columns: Columns | None = None
    """Of a part of another task."""

    def __init__(
        self,
        *,
        batch: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        hide: tuple[str, ...] = (),
    ) -> None:
        _check_sizes(batch, dtype)
        for name in hide:
            _check_hidden(name, self.observation_names)
        self.batch = batch
        self.device = torch.device(device)
        self.dtype = dtype
        self.observation_size = len(self.observation_names)
        # On the device from the start: a copy from the host cannot be captured.
        self._low = torch.tensor(self.low, dtype=dtype, device=self.device)
        self._width = torch.tensor(self.high, dtype=dtype, device=self.device) - self._low
        self._hidden: Tensor | None = None
        if hide:
            flags = [name in hide for name in self.observation_names]
            self._hidden = torch.tensor(flags, device=self.device)

    @property
    def episode_steps(self) -> int:
        """Number of steps after which every episode has ended."""
        return self.limit

    @abstractmethod
    def _move(self, physical: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return next physical state [B, S], reward [B] and terminated [B]."""

    @abstractmethod
    def _observe(self, physical: Tensor) -> Tensor:
        """Return what is seen of a physical state, before anything is hidden, [B, F]."""

    def reset(self, generator: torch.Generator) -> tuple[ControlState, Tensor]:
        """Start B episodes at random; return the state and the observation [B, F]."""
        return self._begin(self._start(self._draw(generator)))

    def place(self, physical: Tensor) -> tuple[ControlState, Tensor]:
        """Start B episodes in a given physical state [B, S]; return it and the observation [B, F].

        Raises:
            ShapeError: for another shape than [B, S].
            DtypeError: for another dtype than the task's.
        """
        shape = (self.batch, len(self.physical_names))
        if tuple(physical.shape) != shape:
            raise ShapeError(
                wrong=f"`physical` must have the shape {shape}",
                found=f"physical {tuple(physical.shape)}",
                remedy=f"Pass {', '.join(self.physical_names)} for each environment.",
            )
        if physical.dtype != self.dtype:
            raise DtypeError(
                wrong=f"`physical` must be a tensor of {self.dtype}",
                found=f"{physical.dtype}",
                remedy=f"Convert it with `.to({self.dtype})`.",
            )
        return self._begin(physical)

    def step(
        self, state: ControlState, action: Tensor, generator: torch.Generator
    ) -> tuple[ControlState, Step[ControlInfo]]:
        """Do one action in each environment.

        On the CPU an invalid action is refused; elsewhere, and while tracing, reading its values
        would stall the device, so it is replaced and marked as in `transition`.

        Args:
            state: of the step before; it is left as it is.
            action: int64 [B], or [B, A] in the dtype of the task.
            generator: for starts; it moves on by the same amount whatever happens.

        Raises:
            ShapeError: for an action of another shape.
            DtypeError: for an action of another dtype.
            RangeError: for an index out of range, or NaN or infinity, on the CPU.
        """
        self.actions.check(action, batch=self.batch, dtype=self.dtype)
        if self.device.type == "cpu" and not is_traced():
            self._refuse_bad(state, action)
        return self.transition(state, action, self._draw(generator))

    def transition(
        self, state: ControlState, action: Tensor, uniform: Tensor
    ) -> tuple[ControlState, Step[ControlInfo]]:
        """Do one action in each environment, as a pure function that reads no value.

        An index out of range is replaced by the nearest one, NaN and infinity by 0; the row is then
        marked in `info.bad_action`. Where the last episode just ended the action is ignored, a new
        episode starts from `uniform`, and the sample weight is 0.

        Args:
            state: of the step before.
            action: int64 [B], or [B, A] in the dtype of the task.
            uniform: numbers in [0, 1) from which new episodes start, [B, S].
        """
        self.actions.check(action, batch=self.batch, dtype=self.dtype)
        over = state.over
        moved, reward, terminated = self._move(state.physical, self.actions.mend(action))
        physical = torch.where(over[:, None], self._start(uniform), moved)
        elapsed = torch.where(over, 0, state.elapsed + 1)
        terminated = terminated & ~over
        truncated = (elapsed >= self.limit) & ~terminated
        info = ControlInfo(
            sample_weight=(~over).to(self.dtype),
            bad_action=self.actions.bad(action) & ~over,
        )
        step = Step(
            self._show(physical), torch.where(over, 0.0, reward), terminated, truncated, info
        )
        return ControlState(physical, elapsed, terminated | truncated), step

    def _begin(self, physical: Tensor) -> tuple[ControlState, Tensor]:
        elapsed = torch.zeros(self.batch, dtype=torch.int64, device=self.device)
        over = torch.zeros(self.batch, dtype=torch.bool, device=self.device)
        return ControlState(physical, elapsed, over), self._show(physical)

    def part(self, columns: Columns) -> Self:
        """Return some of the environments, see `core.task.part`."""
        other = copy.copy(self)
        other.batch, other.columns = columns.width, columns
        return other

    def _draw(self, generator: torch.Generator) -> Tensor:
        whole = self.batch if self.columns is None else self.columns.whole
        shape = (whole, len(self.physical_names))
        drawn = torch.rand(shape, dtype=self.dtype, device=self.device, generator=generator)
        return drawn if self.columns is None else self.columns.of(drawn)

    def _start(self, uniform: Tensor) -> Tensor:
        return self._low + self._width * uniform  # [B, S]

    def _show(self, physical: Tensor) -> Tensor:
        seen = self._observe(physical)
        return seen if self._hidden is None else torch.where(self._hidden, 0.0, seen)

    def _refuse_bad(self, state: ControlState, action: Tensor) -> None:
        # What the row after an end holds is ignored, so it may be anything.
        bad = self.actions.bad(action)
        if not bool(bad.any()):
            return
        bad = bad & ~state.over
        if bool(bad.any()):
            raise self.actions.refusal(action, bad)


def _check_sizes(batch: int, dtype: torch.dtype) -> None:
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise RangeError(
            wrong="`batch` must be a whole number of at least 1",
            found=repr(batch),
            remedy="Pass the number of environments.",
        )
    if dtype not in _DTYPES:
        raise DtypeError(
            wrong="`dtype` must be torch.float32 or torch.float64",
            found=str(dtype),
            remedy="Use torch.float32 to learn and torch.float64 to compare.",
        )


def _check_hidden(name: str, names: tuple[str, ...]) -> None:
    if name in names:
        return
    close = nearest(name, names)
    raise ChoiceError(
        wrong=f"every name in `hide` must be one of {', '.join(names)}",
        found=repr(name),
        remedy=f"Did you mean `{close}`?" if close else "Take one of the observed features.",
    )
