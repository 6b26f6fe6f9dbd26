"""CUDA graphs: functions of tensors that stay in place, recorded once and launched as a whole.

A rollout is some 20,000 small kernels, which a host launches more slowly than a GPU runs them. A
graph is launched by one call. It reads and writes the addresses that it was recorded with, so its
inputs are copied into tensors that never move, and numbers that change are tensors, too.

Random numbers: every generator of the function is registered with the graph. A launch then takes
up the numbers from where the generator stands and moves it on by as many as the function draws, as
running the function itself would. A generator's state is its seed and that position, on the host;
so a checkpoint saves it as ever, and a resumed run, which records its graphs anew, goes on with the
same numbers. What is drawn while a graph is made is put back.
"""

import gc
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.update.rollout import EnvState, Rollout, collect
from stormsail.core import turns
from stormsail.core.machine_code.graph_inputs import Places, form_of, set_apart
from stormsail.core.machine_code.recording_streams import recording_stream
from stormsail.core.task import Task, is_capturable
from stormsail.modules.agent import Agent

Given = TypeVar("Given")
Result = TypeVar("Result")

WARM_UPS = 2
"""Plain runs before a recording: they compile kernels and make what is kept on the device."""


_RECORDING = threading.Lock()
"""One thread at a time records: it waits for the whole device, which must not record meanwhile."""


@contextmanager
def _recording() -> Iterator[None]:
    """Record alone; whoever records may need a turn to get on, so it is given up while waiting."""
    with ExitStack() as held:
        with turns.given_up():
            held.enter_context(_RECORDING)
        yield


@contextmanager
def without_collection() -> Iterator[None]:
    """Let Python collect no garbage: a graph must not be destroyed while another is recorded."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _renew(generators: Sequence[torch.Generator]) -> None:
    """Give generators of a GPU fresh states: those of a failed recording refuse to draw again."""
    for generator in generators:
        if generator.device.type == "cuda":
            generator.graphsafe_set_state(torch.Generator(generator.device).graphsafe_get_state())


class Graph(Generic[Result]):
    """A recorded function.

    Args:
        function: takes nothing and never waits for the device; its results stay in place.
        generators: all that it draws from.
        warm_up: run before; None takes the function itself. It must leave everything but the
            generators as it was.

    Raises:
        RuntimeError: if the function cannot be recorded.
    """

    def __init__(
        self,
        function: Callable[[], Result],
        generators: Sequence[torch.Generator],
        *,
        warm_up: Callable[[], object] | None = None,
    ) -> None:
        states = [generator.get_state() for generator in generators]
        try:
            with _recording():
                self._recorded_on = recording_stream()
                aside = self._recorded_on.stream
                aside.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(aside):
                    for _ in range(WARM_UPS):
                        (warm_up or function)()
                torch.cuda.current_stream().wait_stream(aside)
                torch.cuda.synchronize()
                torch.cuda.empty_cache()  # a graph has memory of its own
                self._graph = torch.cuda.CUDAGraph()
                for generator in generators:
                    self._graph.register_generator_state(generator)
                with (
                    without_collection(),
                    torch.cuda.graph(self._graph, stream=aside, capture_error_mode="thread_local"),
                ):
                    self.result = function()
                self._recorded_on.graphs.append(self._graph)
        except BaseException:
            _renew(generators)
            raise
        finally:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)

    def __call__(self) -> Result:
        """Run the function; its results are overwritten by the next call."""
        self._graph.replay()
        return self.result


class CapturedRollout:
    """`rollout.collect` as one graph; a rollout is overwritten by the next one.

    Args:
        task: whose steps read nothing on the host.
        agent: draws the actions.
        begins: state of the environments, for shapes and types.
        generators: of actions, and of the task.
        options: further arguments of `collect`.

    Raises:
        RuntimeError: if a step of the task cannot be recorded.
    """

    def __init__(
        self,
        task: Task[Any],
        agent: Agent,
        begins: EnvState,
        generators: tuple[torch.Generator, torch.Generator],
        **options: Any,  # noqa: ANN401 - those of `collect`
    ) -> None:
        self._state: EnvState = _copied(begins)

        def steps() -> tuple[EnvState, Rollout]:
            return collect(task, agent, self._state, generators=generators, **options)

        def function() -> Rollout:
            after, rollout = steps()
            _copy_into(self._state, after)
            return rollout

        self._graph = Graph(function, generators, warm_up=steps)

    def __call__(self, env_state: EnvState) -> tuple[EnvState, Rollout]:
        """Return the state after the steps and the transitions, as `collect` does."""
        if env_state is not self._state:
            _copy_into(self._state, env_state)
        return self._state, self._graph()


def _copied(value: Any) -> Any:  # noqa: ANN401 - a nest of named tuples and tensors
    if isinstance(value, Tensor):
        return value.clone()
    return type(value)(*(_copied(part) for part in value))


def _copy_into(places: Any, values: Any) -> None:  # noqa: ANN401 - nests of the same form
    if isinstance(places, Tensor):
        places.copy_(values)
        return
    for place, value in zip(places, values, strict=True):
        _copy_into(place, value)


class _Recording(NamedTuple):
    """A function with the tensors that it reads."""

    places: Places
    run: Callable[[], Any]


class Recorder:
    """Functions of tensors, each recorded when it is called first.

    The tensors of the first call become the places that the graph reads; those of a later call are
    copied there, unless they are there already, as the results of other graphs are. What else a
    function reads (weights, statistics) must stay in place, and it must write nothing but what it
    says. A number
    that may change has to be a tensor, so a float is refused; flags, names and None belong to the
    function: with others it is recorded anew. Results are overwritten by the next call.

    Args:
        captured: whether there is a device to record for; otherwise functions are called.
        generators: all that functions draw from.
    """

    def __init__(self, *, captured: bool, generators: Sequence[torch.Generator] = ()) -> None:
        self.captured = captured
        self._generators = generators
        self._known: dict[str, _Recording] = {}
        self._eager: set[str] = set()

    def __call__(
        self,
        part: str,
        function: Callable[[Given], Result],
        given: Given,
        *,
        writes: Callable[[], Iterable[Tensor]] = tuple,
    ) -> Result:
        """Return the function's result.

        Args:
            part: what the function is, for the line that says why it is not recorded.
            function: never waits for the device and is the same in every call of this part.
            given: all that changes: a nest of tables, tuples, data classes and tensors.
            writes: returns all tensors that it changes; those that it makes begin with zeros.

        Raises:
            TypeError: if a number is given that is no tensor.
        """
        known = self._known.get(part)
        if known is not None and known.places.moves_at_once(given):
            return known.run()  # type: ignore[no-any-return]
        tensors: list[Tensor] = []
        form = form_of(given, tensors)
        if not self.captured or part in self._eager:
            return function(given)
        if known is None or known.places.form != form:
            self._known.pop(part, None)  # frees the memory of its graph
            placed = set_apart(given, set())
            try:
                with _undone(writes):
                    graph = Graph(lambda: function(placed), self._generators)
            except RuntimeError as error:
                tell_eager(part, str(error).splitlines()[0])
                self._eager.add(part)
                return function(given)
            known = self._known[part] = _Recording(Places(placed), graph)
        known.places.move(given, tensors)
        result: Result = known.run()
        return result


@contextmanager
def _undone(writes: Callable[[], Iterable[Tensor]]) -> Iterator[None]:
    """Put tensors back to what they were; those that are new to 0."""
    # a copy with a gradient's path would tie what is recorded to the stream of this line
    kept = {id(tensor): tensor.detach().clone() for tensor in writes()}
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor in writes():
                before = kept.get(id(tensor))
                tensor.zero_() if before is None else tensor.copy_(before)


def captures(task: Task[Any], config: TrainConfig) -> bool:
    """Return whether parts of an update are captured where they can be."""
    return task.device.type == "cuda" and config.cuda_graphs != "off"


def rollout_obstacle(task: Task[Any], config: TrainConfig) -> str | None:
    """Return why a rollout cannot be captured; None where it can."""
    if not is_capturable(task):
        return f"the task `{config.task.name}` steps on the host"
    if config.observation.normalise and config.observation.obs_stats_update == "online":
        return "`observation.obs_stats_update` is `online`"
    if config.adversary.attacks_rollouts and config.adversary.forges:
        return "an adversary forges what is observed, by gradients"
    return None


def epochs_obstacle(config: TrainConfig) -> str | None:
    """Return why minibatches cannot be captured; None where they can."""
    if config.adversary.attacks_minibatches and config.adversary.forges:
        return "an adversary attacks the minibatches, each in its own way"
    if config.ppo.nonfinite_policy == "raise":
        return "`ppo.nonfinite_policy` is `raise`, which looks at every minibatch"
    if config.vgs.enabled and config.vgs.statistic == "microbatch":
        return "`vgs.statistic` is `microbatch`, which looks at every part of a minibatch"
    return None


GRAPHS = "CUDA graphs"
COMPILER = "a compiler"


def tell_eager(part: str, reason: str, *, without: str = GRAPHS) -> None:
    """Say once that a part runs kernel by kernel, and why."""
    warnings.warn(f"{part} run without {without}, so more slowly: {reason}", stacklevel=3)


@contextmanager
def waiting_allowed() -> Iterator[None]:
    """Let the host wait for the device, where `torch.cuda.set_sync_debug_mode` forbids it.

    A thread that has a turn gives it up until the device has done what it was given (`core.turns`);
    what is read inside is there then.
    """
    if not torch.cuda.is_initialized():
        yield
        return
    if turns.has_turn():
        done = torch.cuda.Event(blocking=True)  # sleeps: others need the processor
        done.record()
        with turns.given_up():
            done.synchronize()
    mode = torch.cuda.get_sync_debug_mode()
    if mode == 0:  # nothing is forbidden, and to say so again would warn of a prototype
        yield
        return
    torch.cuda.set_sync_debug_mode("default")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def captured_rollout(
    task: Task[Any],
    own_task: Task[Any],
    agent: Agent,
    config: TrainConfig,
    begins: EnvState,
    generators: tuple[torch.Generator, torch.Generator],
    **options: Any,  # noqa: ANN401 - those of `collect`
) -> CapturedRollout | None:
    """Return a rollout as a graph; None, with a line that says why, where it cannot be.

    Args:
        task: the environments.
        own_task: those of this process.
        agent: draws the actions.
        config: of the run.
        begins: state of the environments, for shapes and types.
        generators: of actions, and of the task.
        options: further arguments of `collect`.
    """
    obstacle = rollout_obstacle(task, config)
    if obstacle is None:
        try:
            return CapturedRollout(own_task, agent, begins, generators, **options)
        except RuntimeError as error:  # a task of the user's own may read a value
            obstacle = str(error).splitlines()[0]
    tell_eager("rollouts", obstacle)
    return None
