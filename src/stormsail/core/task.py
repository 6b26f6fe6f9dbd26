"""`Task`, the interface between learner and environment: actions, sizes, `reset` and `step`.

Markets and control tasks implement it independently of one another. B environments run side by
side; F is the number of observed features, A that of action dimensions, D that of the choices of
all of them together.

Episodes follow the next-step rule of Gymnasium 1.0: the step that ends an episode shows its last
observation; the step after it ignores the action, shows the first observation of a new episode, has
reward 0, no flags and a sample weight of 0.
"""

from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from stormsail.core.errors import DtypeError, RangeError, ShapeError

State = TypeVar("State")


class StepInfo(Protocol):
    """Fields of a step's `info`, a named tuple of tensors, that every task has."""

    @property
    def sample_weight(self) -> Tensor:
        """One [B], but 0 on the row after an end, whose action was ignored."""


Info = TypeVar("Info", bound=StepInfo, covariant=True)


class Step(NamedTuple, Generic[Info]):
    """Result of one step, for each environment."""

    observation: Tensor
    """[B, F]; of an episode that just ended, its last one."""
    reward: Tensor
    """[B]."""
    terminated: Tensor
    """[B] bool: the task is over, so no reward follows."""
    truncated: Tensor
    """[B] bool: cut by a limit although the task would go on; never where `terminated`."""
    info: Info
    """A named tuple of tensors; it always has `sample_weight` [B]."""


class Alternatives(NamedTuple):
    """What each of K actions would make of the coming step, by the same draw."""

    reward: Tensor
    """[B, K], as `Step.reward`."""
    terminated: Tensor
    """[B, K] bool, as `Step.terminated`."""
    account: Tensor
    """[B, K, P]: the columns `account_names` of the observation after the step, as the task shows
    them."""


@dataclass(frozen=True)
class DiscreteActions:
    """Actions are whole numbers from 0 to `count` - 1, as int64 [B]."""

    count: int

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1:
            raise RangeError(
                wrong="`count` must be a whole number of at least 1",
                found=repr(self.count),
                remedy="Pass the number of choices.",
            )

    def check(self, action: Tensor, *, batch: int, dtype: torch.dtype) -> None:
        """Refuse another shape than [batch] or another dtype than int64; values are not read.

        `dtype` is the task's own and does not matter here.
        """
        del dtype
        _check_action(action, shape=(batch,), dtype=torch.int64)

    def bad(self, action: Tensor) -> Tensor:
        """Return [B] bool: where the index is none of 0 to `count` - 1."""
        return (action < 0) | (action >= self.count)

    def mend(self, action: Tensor) -> Tensor:
        """Return the nearest allowed index, for code that cannot raise (traced, on a device)."""
        return action.clamp(0, self.count - 1)

    def refusal(self, action: Tensor, bad: Tensor) -> RangeError:
        """Return the error for the first row marked in `bad` [B]; reads values."""
        row = int(bad.int().argmax())
        return RangeError(
            wrong=f"every `action` must lie in 0 to {self.count - 1}",
            found=f"{int(action[row])} in environment {row}",
            remedy=f"Choose among {self.count} actions, counted from 0.",
        )


@dataclass(frozen=True)
class MultiDiscreteActions:
    """Actions are A independent choices, entry k from 0 to `counts[k]` - 1, as int64 [B, A]."""

    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.counts or not all(type(count) is int and count >= 1 for count in self.counts):
            raise RangeError(
                wrong="`counts` must be one or more whole numbers of at least 1",
                found=repr(self.counts),
                remedy="Pass the number of choices of each dimension.",
            )

    @property
    def count(self) -> int:
        """Number of dimensions A."""
        return len(self.counts)

    def check(self, action: Tensor, *, batch: int, dtype: torch.dtype) -> None:
        """Refuse another shape than [batch, A] or dtype than int64; values are not read.

        `dtype` is the task's own and does not matter here.
        """
        del dtype
        _check_action(action, shape=(batch, self.count), dtype=torch.int64)

    def bad(self, action: Tensor) -> Tensor:
        """Return [B] bool: where any index is out of its range."""
        return ((action < 0) | (action >= action.new_tensor(self.counts))).any(-1)

    def mend(self, action: Tensor) -> Tensor:
        """Return the nearest allowed indices, for code that cannot raise (traced, on a device)."""
        return torch.minimum(action.clamp(min=0), action.new_tensor(self.counts) - 1)

    def refusal(self, action: Tensor, bad: Tensor) -> RangeError:
        """Return the error for the first row marked in `bad` [B]; reads values."""
        row = int(bad.int().argmax())
        highest = [count - 1 for count in self.counts]
        return RangeError(
            wrong=f"every `action` must lie between 0 and {highest}",
            found=f"{action[row].tolist()} in environment {row}",
            remedy="Choose among the actions of each dimension, counted from 0.",
        )


@dataclass(frozen=True)
class ContinuousActions:
    """Actions are numbers as [B, A] in the dtype of the task.

    What lies outside `low` to `high` is clipped by the task, not refused: a Gaussian policy always
    draws some.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.low or len(self.low) != len(self.high):
            raise ShapeError(
                wrong="`low` and `high` must have one entry for each action dimension",
                found=f"{len(self.low)} and {len(self.high)} entries",
                remedy="Pass one bound per dimension.",
            )
        if not all(low < high for low, high in zip(self.low, self.high, strict=True)):
            raise RangeError(
                wrong="every entry of `low` must be smaller than that of `high`",
                found=f"low {self.low} and high {self.high}",
                remedy="Leave out a dimension that cannot move.",
            )

    @property
    def count(self) -> int:
        """Number of dimensions A."""
        return len(self.low)

    def check(self, action: Tensor, *, batch: int, dtype: torch.dtype) -> None:
        """Refuse another shape than [batch, A] or dtype than the task's; values are not read."""
        _check_action(action, shape=(batch, self.count), dtype=dtype)

    def bad(self, action: Tensor) -> Tensor:
        """Return [B] bool: where any dimension is NaN or infinite."""
        return ~action.isfinite().all(-1)

    def mend(self, action: Tensor) -> Tensor:
        """Return 0 for NaN and infinities, for code that cannot raise (traced, on a device)."""
        return torch.where(action.isfinite(), action, 0.0)

    def refusal(self, action: Tensor, bad: Tensor) -> RangeError:
        """Return the error for the first row marked in `bad` [B]; reads values."""
        row = int(bad.int().argmax())
        return RangeError(
            wrong="every `action` must be finite",
            found=f"{action[row].tolist()} in environment {row}",
            remedy="Look for a policy whose mean or scale became NaN.",
        )


Actions = DiscreteActions | MultiDiscreteActions | ContinuousActions


@dataclass(frozen=True)
class ImagePart:
    """An image within an observation: its pixels in the order channel, row, column, in [0, 1]."""

    name: str
    channels: int
    height: int
    width: int

    @property
    def size(self) -> int:
        """Number of columns."""
        return self.channels * self.height * self.width


@dataclass(frozen=True)
class ObservationLayout:
    """What the columns of an observation are: named ones first, then the pixels of images."""

    names: tuple[str, ...]
    """One for each column that is no pixel."""
    unscaled: tuple[str, ...] = ()
    """Of those, the ones that are not to be normalised: one-hots and flags."""
    images: tuple[ImagePart, ...] = ()
    """In the order of their columns."""

    @property
    def size(self) -> int:
        """Number of columns F."""
        return len(self.names) + sum(image.size for image in self.images)


class Task(Protocol[State]):
    """B environments that step together on one device.

    `State` is a named tuple of tensors with B first; nothing of it is changed in place.

    Fourteen members are optional, and read by the functions of the same names below:
    `observation_layout` where columns are images, one-hots or flags; `action_mask(state)` where not
    every action is allowed in every state; `info_names` where `step` gives `info.measured`, numbers
    [B, K] to be reported under these K names; `episode_steps` where no episode lasts longer than
    that many steps; `alternatives(state, actions)` and `account_names` where the task can say what
    other actions would have made of the same step, see `alternatives`; `with_batch(batch)` where
    the same task can be had with another number of environments, as every task with
    `alternatives` must; `draw_places(state)` where episodes share what they draw; `part(columns)`
    where some of the environments can be had alone, and `columns` of such a part; `forgeable_names`
    where some columns are known for sure; `is_capturable`, false where a step needs the host;
    `symbols` where `info.symbol` counts them; `close` where something must be let go.
    """

    @property
    def batch(self) -> int:
        """Number of environments B."""

    @property
    def device(self) -> torch.device:
        """Where every tensor lives, and the generator too."""

    @property
    def dtype(self) -> torch.dtype:
        """Of observations, rewards and continuous actions."""

    @property
    def observation_size(self) -> int:
        """Number of features F."""

    @property
    def observation_names(self) -> tuple[str, ...]:
        """One name per feature that is no pixel of an image."""

    @property
    def actions(self) -> Actions:
        """The action space."""

    def reset(self, generator: torch.Generator) -> tuple[State, Tensor]:
        """Start B episodes; return the state and the observation [B, F]."""

    def step(
        self, state: State, action: Tensor, generator: torch.Generator
    ) -> tuple[State, Step[StepInfo]]:
        """Do one action in each environment; return the new state and the result."""


def observation_layout(task: Task[Any]) -> ObservationLayout:
    """Return what the columns of a task's observation are; numbers, unless it says otherwise."""
    own: ObservationLayout | None = getattr(task, "observation_layout", None)
    return ObservationLayout(task.observation_names) if own is None else own


def action_mask(task: Task[State], state: State) -> Tensor | None:
    """Return which choices are allowed in a state, bool [B, D]; None where all are, always.

    D are the classes of all dimensions in order. Every row has a true entry for each dimension; the
    row after an end, whose action is ignored, has true ones only.
    """
    read = getattr(task, "action_mask", None)
    mask: Tensor | None = None if read is None else read(state)
    return mask


def info_names(task: Task[Any]) -> tuple[str, ...]:
    """Return the names of the columns of `info.measured`; none for most tasks."""
    names: tuple[str, ...] = getattr(task, "info_names", ())
    return names


def symbols(task: Task[Any]) -> tuple[str, ...] | None:
    """Return the names of the symbols that `info.symbol` counts; None where a task does not say."""
    names: tuple[str, ...] | None = getattr(task, "symbols", None)
    return names


def alternatives(task: Task[State], state: State, actions: Tensor) -> Alternatives | None:
    """Return what each of K actions would make of the coming step; None where a task cannot say.

    A task can where what it draws does not depend on the action: a market whose prices nobody moves
    is one, and shows with every bar what each position would have made of it. A task that has the
    member keeps this contract:

    - entry k is what `step` gives for action k in every environment: the same reward, flag and
      `account_names` columns;
    - a state fixes what the coming step draws, and a state at an episode's start fixes all draws of
      that episode: stepping from it again with the same actions gives the same rewards, whatever
      the generator. The generator decides on the episodes that follow, and may decide on columns of
      the observation that are not in `account_names`;
    - in rows after an end, whose action is ignored, the values may be anything finite;
    - the rows of a state may be more or fewer than B: those of many steps are valued in one call;
    - `with_batch` gives the same task for another number of environments;
    - no value of a tensor is read on the host.

    Args:
        task: B environments.
        state: theirs.
        actions: [K]. Indices of discrete actions, int64, or one-dimensional continuous actions in
            the dtype of the task.
    """
    read = getattr(task, "alternatives", None)
    outcomes: Alternatives | None = None if read is None else read(state, actions)
    return outcomes


def draw_places(task: Task[State], state: State) -> Tensor | None:
    """Return where on a line the draws of the episodes that begin in a state lie, int64 [B].

    Two that begin less than `episode_steps` apart may share draws, others do not: weeks of one
    stretch of bars. What is drawn for all at a time has one place, as the bars of symbols that move
    together. None where every episode draws afresh, as in most tasks.
    """
    read = getattr(task, "draw_places", None)
    places: Tensor | None = None if read is None else read(state)
    return places


def with_batch(task: Task[State], batch: int, *, compiled: bool = False) -> Task[State]:
    """Return the same task with another number of environments; its data are shared.

    Args:
        task: which.
        batch: how many environments.
        compiled: whether its steps are compiled where those of the task are.

    Raises:
        LookupError: if the task cannot be had with another number.
    """
    make = getattr(task, "with_batch", None)
    if make is None:
        raise LookupError(f"{type(task).__name__} has a fixed number of environments")
    other: Task[State] = make(batch)
    if compiled and getattr(task, "is_compiled", False):
        other.compile()  # type: ignore[attr-defined]
    return other


class Columns(NamedTuple):
    """Neighbouring environments among all B of a task."""

    first: int
    width: int
    """How many."""
    whole: int
    """B."""

    def of(self, values: Tensor, axis: int = 0) -> Tensor:
        """Return the entries of these environments, as a view."""
        return values.narrow(axis, self.first, self.width)


def part(task: Task[State], columns: Columns) -> Task[State]:
    """Return some of a task's environments as a task of their own; its data are shared.

    A step draws for all environments and takes its own numbers: parts that are stepped side by side
    from generators in the same state do what the whole task does.

    Raises:
        LookupError: if the task cannot be divided.
    """
    make = getattr(task, "part", None)
    if make is None:
        raise LookupError(f"{type(task).__name__} cannot be divided")
    own: Task[State] = make(columns)
    return own


def columns_of(task: Task[Any]) -> Columns | None:
    """Return which environments a part of a task has; None of a whole task."""
    columns: Columns | None = getattr(task, "columns", None)
    return columns


def account_names(task: Task[Any]) -> tuple[str, ...]:
    """Return the P columns of the observation that the agent's own actions change.

    In a task that has `alternatives`, no action changes any other column. None for most tasks.
    """
    names: tuple[str, ...] = getattr(task, "account_names", ())
    return names


def forgeable_names(task: Task[Any]) -> tuple[str, ...]:
    """Return the columns of the observation that come from outside, so that they could be forged.

    An image is one of them, by its name. Unless a task says otherwise, all but `account_names` and
    the one-hots and flags of its layout. An adversary leaves the others alone: an agent knows its
    own account and the time.
    """
    own: tuple[str, ...] | None = getattr(task, "forgeable_names", None)
    if own is not None:
        return own
    layout = observation_layout(task)
    known = {*account_names(task), *layout.unscaled}
    return tuple(
        name
        for name in (*layout.names, *(image.name for image in layout.images))
        if name not in known
    )


def episode_steps(task: Task[Any]) -> int | None:
    """Return the number of steps after which every episode has ended; None where nothing says."""
    steps: int | None = getattr(task, "episode_steps", None)
    return steps


def is_capturable(task: Task[Any]) -> bool:
    """Return whether `step` is all tensors, so that a CUDA graph can capture it; most tasks' is.

    Such a step reads no value on the host, draws from its generator alone and keeps nothing: the
    same state, action and position of the generator give the same result.
    """
    return bool(getattr(task, "is_capturable", True))


def close(task: Task[Any] | None) -> None:
    """Let go what a task holds, such as worker processes; nothing for most tasks."""
    let_go = getattr(task, "close", None)
    if let_go is not None:
        let_go()


def _check_action(action: Tensor, *, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(action.shape) != shape:
        raise ShapeError(
            wrong=f"`action` must have the shape {shape}",
            found=f"action {tuple(action.shape)}",
            remedy="Pass one action for each environment; this task never broadcasts.",
        )
    if action.dtype != dtype:
        raise DtypeError(
            wrong=f"`action` must be a tensor of {dtype}",
            found=f"{action.dtype}",
            remedy=f"Convert it with `.to({dtype})`.",
        )
