"""Callbacks of a training run: what they are told, and how one of them stops the run.

A callback sees values and changes none: a run is a function of its settings, data and seed, with
callbacks and without. All that it may do to the run is to return `Stop`. Then the update is
finished, a checkpoint is written, and the run ends as `paused`; the same call goes on from there
and ends with the same bytes as a run that was never stopped.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stormsail.algorithms.run.evaluate import Evaluation
from stormsail.core import plugins
from stormsail.core.errors import ArgumentError


@dataclass(frozen=True)
class Progress:
    """Progress of a run after an update."""

    update: int
    """Updates done so far."""
    steps: int
    """Steps of all environments so far."""
    total_steps: int
    """Steps of all updates of the run: those that are asked for, up to the end of an update."""
    metrics: Mapping[str, float]
    """Metrics of the update by name (docs/metrics.md)."""
    alarms: tuple[str, ...]
    """Messages of the alarms that began with this update."""
    best_score: float | None
    """Score of the best agent so far; None before the first evaluation."""


@dataclass(frozen=True)
class Evaluated:
    """An evaluation of the agent during training."""

    update: int
    """Updates done so far."""
    steps: int
    """Steps of all environments so far."""
    evaluation: Evaluation
    """What the episodes returned."""
    is_best: bool
    """Whether the agent is the best so far, so that it was just saved to `best`."""
    best: Path
    """Folder of the best agent; `Agent.load` reads it. There is none while no score was finite."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was just written; a kill from now on loses nothing before it."""

    update: int
    """Updates done so far."""
    steps: int
    """Steps of all environments so far."""
    path: Path
    """Its folder."""


@dataclass(frozen=True)
class Stop:
    """Request of a callback to stop the run after the current update.

    Args:
        reason: why, for the run's log and for `Run.reason`.
    """

    reason: str = ""


class Callback:
    """Base class of callbacks: override what you need, return `Stop` to stop the run.

    In an update the order is `on_evaluation` and `on_checkpoint`, where they are due, then
    `on_update`. An update that is rolled back after a divergence is told to nobody; those that
    replace it are told with the same numbers again. A resumed run tells its new updates only: a
    callback with a memory begins anew. An exception of a callback ends the run as any other would,
    and the last checkpoint stays.
    """

    def on_update(self, progress: Progress) -> Stop | None:
        """Called after each update."""

    def on_evaluation(self, evaluated: Evaluated) -> Stop | None:
        """Called after each evaluation; its agent is saved already where it is the best."""

    def on_checkpoint(self, checkpoint: Checkpoint) -> Stop | None:
        """Called after each checkpoint, that of the beginning and that of the end included."""


class Callbacks:
    """The callbacks of a run, called in their order.

    Args:
        callbacks: all of them are called, also after one that asks to stop.

    Raises:
        ArgumentError: if one of them is no `Callback`.
    """

    def __init__(self, callbacks: Iterable[Callback] = ()) -> None:
        self._callbacks = tuple(callbacks)
        for one in self._callbacks:
            if not isinstance(one, Callback):
                raise ArgumentError(
                    "callback-form",
                    wrong="a callback must be an object of a class made from `Callback`",
                    found=f"the class {one.__name__} itself"
                    if isinstance(one, type)
                    else f"a value of the type {type(one).__name__}",
                    remedy="Write `class Mine(ss.Callback)` and pass `callbacks=[Mine()]`.",
                )
        self.stop: str | None = None
        """Why the run is to stop, from the first that asked; None goes on."""

    def on_update(self, progress: Progress) -> None:
        """Tell all of an update."""
        for one in self._callbacks:
            self._heed(one, "on_update", one.on_update(progress))

    def on_evaluation(self, evaluated: Evaluated) -> None:
        """Tell all of an evaluation."""
        for one in self._callbacks:
            self._heed(one, "on_evaluation", one.on_evaluation(evaluated))

    def on_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Tell all of a checkpoint."""
        for one in self._callbacks:
            self._heed(one, "on_checkpoint", one.on_checkpoint(checkpoint))

    def _heed(self, callback: Callback, method: str, answer: object) -> None:
        """Note a request to stop; refuse another answer, which may be meant as one."""
        if answer is None:
            return
        name = type(callback).__name__
        if not isinstance(answer, Stop):
            raise ArgumentError(
                "callback-form",
                wrong=f"`{name}.{method}` must return None, or `Stop` to stop the run",
                found=repr(answer),
                remedy='Return `ss.Stop("why")`, or nothing.',
            )
        if self.stop is None:
            self.stop = f"{name} stopped it{': ' * bool(answer.reason)}{answer.reason}"


Factory = Callable[[], Callback]
"""A class made from `Callback`, or a function that returns one; without arguments."""

CALLBACKS = plugins.published(plugins.Registry[Factory]("callback"))
"""Where `callback` puts what it decorates."""


def callback(*, name: str) -> Callable[[type[Callback]], type[Callback]]:
    """Register a class made from `Callback`, which is made without arguments.

    Args:
        name: unique, in lower case; `callbacks` of a configuration names it.

    Raises:
        ArgumentError: if the name is taken or badly formed, or it is no such class.
    """

    def register(kind: type[Callback]) -> type[Callback]:
        if not isinstance(kind, type) or not issubclass(kind, Callback):
            raise ArgumentError(
                "callback-form",
                wrong=f"the callback `{name}` must be a class made from `Callback`",
                found=repr(kind),
                remedy="Write `class Mine(ss.Callback)` below the decorator.",
            )
        CALLBACKS.register(name, kind, defined=kind)
        return kind

    return register


def named_callbacks(names: Iterable[str]) -> list[Callback]:
    """Return new callbacks of plug-ins by their names.

    Raises:
        ChoiceError: if there is none of that name.
    """
    return [CALLBACKS.get(name)() for name in names]
