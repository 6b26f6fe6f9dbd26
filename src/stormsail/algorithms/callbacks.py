"""Callbacks of a training run: what they are told, and how one of them stops the run.

A callback sees values and changes none: a run is a function of its settings, data and seed, with
callbacks and without. All that it may do to the run is to return `Stop`. Then the update is
finished, a checkpoint is written, and the run ends as `paused`; the same call goes on from there
and ends with the same bytes as a run that was never stopped.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stormsail.algorithms.run.evaluate import Evaluation
from stormsail.core import plugins
from stormsail.core.errors import ArgumentError, StormsailError


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
    and the last checkpoint stays; that of a plug-in is refused by its name (`plugin-result`).
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
        named: callbacks of plug-ins, by their names; they are called after the others.

    Raises:
        ArgumentError: if one of them is no `Callback`, or that of a plug-in cannot be made.
        ChoiceError: if there is none of that name.
    """

    def __init__(self, callbacks: Iterable[Callback] = (), named: Iterable[str] = ()) -> None:
        given, names = tuple(callbacks), tuple(named)
        self._callbacks = (*given, *named_callbacks(names))
        self._names = (*(None for _ in given), *names)
        for callback in self._callbacks:
            if not isinstance(callback, Callback):
                raise ArgumentError(
                    "callback-form",
                    wrong="a callback must be an object of a class made from `Callback`",
                    found=f"the class {callback.__name__} itself"
                    if isinstance(callback, type)
                    else f"a value of the type {type(callback).__name__}",
                    remedy="Write `class Mine(ss.Callback)` and pass `callbacks=[Mine()]`.",
                )
        self.stop: str | None = None
        """Why the run is to stop, from the first that asked; None goes on."""

    def on_update(self, progress: Progress) -> None:
        """Tell all of an update."""
        for callback, name in zip(self._callbacks, self._names, strict=True):
            with _of_plugin(name):
                answer = callback.on_update(progress)
            self._heed(callback, "on_update", answer)

    def on_evaluation(self, evaluated: Evaluated) -> None:
        """Tell all of an evaluation."""
        for callback, name in zip(self._callbacks, self._names, strict=True):
            with _of_plugin(name):
                answer = callback.on_evaluation(evaluated)
            self._heed(callback, "on_evaluation", answer)

    def on_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Tell all of a checkpoint."""
        for callback, name in zip(self._callbacks, self._names, strict=True):
            with _of_plugin(name):
                answer = callback.on_checkpoint(checkpoint)
            self._heed(callback, "on_checkpoint", answer)

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
        ArgumentError: if one cannot be made.
    """
    made = []
    for name in names:
        factory = CALLBACKS.get(name)
        with _of_plugin(name):
            made.append(factory())
    return made


@contextmanager
def _of_plugin(name: str | None) -> Iterator[None]:
    """Name the plug-in's callback that raised; those of a script, None, raise as they are.

    Raises:
        ArgumentError: if it raised something else than a refusal.
    """
    try:
        yield
    except StormsailError:
        raise
    except Exception as error:
        if name is None:
            raise
        raise ArgumentError(
            "plugin-result",
            wrong=f"the callback `{name}` must run",
            found=f"{type(error).__name__}: {error}",
            remedy="Correct the plug-in; the same command goes on from the last checkpoint.",
        ) from error
