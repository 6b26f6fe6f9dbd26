"""`stormsail bench train`: environment steps a second, beside other learners.

All learn in this process with the same threads, environments, rows, epochs, samples of a minibatch
and learning rate, in turns: sb3-contrib's RecurrentPPO on a CPU, and a market in JAX where that is
installed. None is given what it does not do by itself: ours scales observations, has an encoder in
front of the memory and computes its metrics, sb3-contrib does not.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Protocol

import torch

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.ppo import Ppo, Update
from stormsail.algorithms.run.tasks import agent_spec, make_task
from stormsail.algorithms.telemetry.metrics import metrics
from stormsail.algorithms.update.assessment import Prepared, Unprepared
from stormsail.algorithms.update.rollout import EnvState, Rollout
from stormsail.bench.learner.bounds import Work, minibatches_of, work
from stormsail.bench.learner.counters import Calls, calls, forget_peak, peak_mib
from stormsail.bench.learner.jax_learner import Shape
from stormsail.bench.learner.train_peers import CARTPOLE, NO_JAX, NOT_INSTALLED, Jax, Sb3
from stormsail.core.config.overrides import apply_overrides
from stormsail.core.errors import ChoiceError, RangeError
from stormsail.core.generators import Generators
from stormsail.modules.agent import Agent
from stormsail.monitors.alarms import Alarms

TASK = CARTPOLE
MARKET = "market"
TASKS = {"cartpole": TASK, "market": MARKET}
"""By the name that the command line takes."""

PARTS = ("rollout", "estimates", "epochs", "metrics")
"""Of one update of ours: rollout, all between rollout and learning, learning, reporting."""

UPKEEP = ("optimizer", "metrics", "alarms")
"""What an update does besides playing and learning; the optimizer's steps are within the epochs."""

LEARNING_RATE = 3e-4
HEAD = 64
"""Width of the one layer between memory and outputs, of actor and critic each."""

ON_A_CPU = "sb3-contrib is compared with on a CPU alone: it steps its environments one by one there"
ON_MARKETS = "the program in JAX trades, so it is compared with on the market alone"

_PLAIN: dict[str, Any] = {
    "network": {"encoder_sizes": []},
    "critic": {"kind": "scalar", "use_twin_critics": False},
    "target": {"kind": "lambda_return"},
    "optimizer": {"optimizer_class": "AdamW"},
}
"""Settings that make ours like sb3-contrib: no encoder, one critic of the mean, Adam."""

_BARS = 8000


@dataclass(frozen=True)
class Sizes:
    """Sizes that both sides have in common."""

    environments: int = 16
    steps: int = 128
    epochs: int = 4
    minibatches: int = 4
    """Of one epoch; they divide the environments."""

    @property
    def samples(self) -> int:
        """Environment steps of one update."""
        return self.environments * self.steps


SIZES = Sizes()

_SIZES = {(TASK, "cpu"): SIZES, (MARKET, "cpu"): Sizes(environments=64, steps=64)}
_CUDA_SIZES = Sizes(environments=16_384, steps=64)


def usual_sizes(task: str, device: str) -> Sizes:
    """Return the sizes at which a task is compared on a device."""
    return _SIZES.get((task, torch.device(device).type), _CUDA_SIZES)


@dataclass(frozen=True)
class Row:
    """One way to learn."""

    width: int
    """Of the LSTM."""
    way: str
    rates: tuple[float, ...]
    """Environment steps a second, of each round."""
    milliseconds: Mapping[str, float] = field(default_factory=dict)
    """Of each of `PARTS` in one update; empty for a peer."""
    task: str = TASK
    environments: int = SIZES.environments
    processor_rates: tuple[float, ...] = ()
    """Environment steps of each round for a second of processor time, all threads together."""
    calls: Calls | None = None
    """In one update; None where torch does not see them."""
    peak_mib: float | None = None
    """Memory during one update; see `counters.peak_mib`."""
    upkeep: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds of each of `UPKEEP` and of the `update` that they are a part of, on a CPU of
    processor time; empty for a peer."""
    work: Mapping[str, Work] = field(default_factory=dict)
    """Of a rollout and of the epochs; empty for a peer."""

    @property
    def rate(self) -> float:
        """The median round."""
        return statistics.median(self.rates)

    @property
    def processor_rate(self) -> float:
        """The median round; 0 where nothing was measured."""
        return statistics.median(self.processor_rates) if self.processor_rates else 0.0

    @property
    def is_peer(self) -> bool:
        """Whether this is not ours."""
        return not self.milliseconds

    @property
    def upkeep_share(self) -> float | None:
        """Share of the update that optimizer, metrics and alarms take; None for a peer."""
        if not self.upkeep:
            return None
        return sum(self.upkeep[part] for part in UPKEEP) / self.upkeep["update"]

    def achieved(self, phase: str) -> Work:
        """Return operations and bytes a second of a phase."""
        seconds, needed = self.milliseconds[phase] / 1e3, self.work[phase]
        return Work(needed.operations / seconds, needed.bytes / seconds)

    def document(self) -> dict[str, Any]:
        """Return all figures."""
        phases = {
            phase: {**asdict(self.work[phase]), "a_second": asdict(self.achieved(phase))}
            for phase in self.work
        }
        return {
            **asdict(self),
            "rate": self.rate,
            "processor_rate": self.processor_rate,
            "upkeep_share": self.upkeep_share,
            "work": phases,
        }


@dataclass(frozen=True)
class Comparison:
    """All ways of one task, one width and one number of environments."""

    rows: Sequence[Row]
    skipped: Mapping[str, str]
    """Ways that could not run here, and why."""


class Learner(Protocol):
    """A learner that is timed."""

    def __call__(self, updates: int) -> None:
        """Do some updates: rollout and learning."""


class Timed(Ppo):
    """The learner with a clock between the parts of its update."""

    stamps: list[float]

    def update(self) -> Update:
        """Do one update; leaves the times between its parts in `stamps`."""
        self.stamps = []
        self._warm_up()  # once in a run, so no part of an update
        self._stamp()
        return super().update()

    def _collect(self) -> tuple[EnvState, Rollout]:
        collected = super()._collect()
        self._stamp()
        return collected

    def _prepare(self, given: Unprepared) -> Prepared:
        prepared = super()._prepare(given)  # what is within may be a recorded function
        self._stamp()
        return prepared

    def _finish(self, done: Update, explained_variance: float) -> None:
        super()._finish(done, explained_variance)
        self._stamp()

    def _stamp(self) -> None:
        self.stamps.append(_now(self.task.device))


class Ours:
    """Our trainer without files: updates and their metrics."""

    def __init__(self, overrides: Mapping[str, Any]) -> None:
        config = derive(TrainConfig.from_mapping(overrides))
        generators = Generators(config.seed, device=config.device)
        task = make_task(config, batch=config.ppo.n_envs)
        agent = Agent(agent_spec(config, task), Generators(config.seed).stream("weights"))
        self.ppo = Timed(task, agent.to(config.device), config, generators)
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.updates = 0

    def __call__(self, updates: int) -> None:
        """Do some updates."""
        for _ in range(updates):
            metrics(self.ppo, self.ppo.update())
            stamps = [*self.ppo.stamps, _now(self.ppo.task.device)]
            for part, began, ended in zip(PARTS, stamps, stamps[1:], strict=False):
                self.seconds[part] += ended - began
        self.updates += updates

    def forget(self) -> None:
        """Begin counting anew."""
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.updates = 0

    def milliseconds(self) -> dict[str, float]:
        """Return the mean time of each part of an update."""
        return {part: 1e3 * spent / self.updates for part, spent in self.seconds.items()}

    def upkeep(self) -> dict[str, float]:
        """Measure `UPKEEP` and the whole of one update, in milliseconds.

        The optimizer's steps are taken with the last gradients, one after the other, so this comes
        last.
        """
        steps = minibatches_of(self.ppo.config)
        stamps = [self._clock()]
        done = self.ppo.update()
        stamps.append(self._clock())
        values = metrics(self.ppo, done)
        stamps.append(self._clock())
        Alarms().check(values)
        stamps.append(self._clock())
        for _ in range(steps):
            self.ppo.pipeline.step()
        stamps.append(self._clock())
        update, measured, alarms, optimizer = (
            1e3 * (after - before) for before, after in itertools.pairwise(stamps)
        )
        return {
            "optimizer": optimizer,
            "metrics": measured,
            "alarms": alarms,
            "update": update + measured + alarms,
        }

    def _clock(self) -> float:
        """Return processor time on a CPU, which others on the machine disturb less."""
        device = self.ppo.task.device
        return time.process_time() if device.type == "cpu" else _now(device)


def overrides(
    sizes: Sizes,
    width: int,
    *,
    task: str,
    plain: bool,
    device: str,
    seed: int,
    settings: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the settings of ours that differ from the defaults."""
    chosen = dict(_PLAIN) if plain else {}
    network = {"lstm_hidden_size": width, "head_sizes": [HEAD], **chosen.pop("network", {})}
    bars = {"data": {"world_bars": _BARS}} if task == MARKET else {}
    document = {
        "task": {"name": task, **bars},
        "ppo": {
            "n_envs": sizes.environments,
            "n_steps": sizes.steps,
            "n_epochs": sizes.epochs,
            "batch_size": sizes.environments // sizes.minibatches,
            "learning_rate": LEARNING_RATE,
        },
        "network": network,
        "kl": {"target_kl": None},  # no epoch is left out
        "device": device,
        "seed": seed,
        **chosen,
    }
    return apply_overrides(document, settings)


class _NotHere(Exception):  # noqa: N818 - says why a way is left out, which is no error
    """A way that is not compared on this device or task."""


def ways(
    task: str,
    sizes: Sizes,
    width: int,
    *,
    device: str,
    seed: int,
    settings: Sequence[str] = (),
    half: bool = False,
) -> dict[str, Callable[[], Learner]]:
    """Return each way's name and what makes it.

    Args:
        task: one of `TASKS`.
        sizes: of all.
        width: of the LSTM.
        device: where all learn.
        seed: of all.
        settings: `path=value` for ours.
        half: let JAX multiply in bfloat16.
    """
    is_cpu = torch.device(device).type == "cpu"

    def ours(name: str, *, plain: bool) -> Learner:
        chosen: dict[str, Any] = {"task": name, "plain": plain, "device": device, "seed": seed}
        return Ours(overrides(sizes, width, settings=settings, **chosen))

    def columns() -> int:
        document = overrides(sizes, width, task=task, plain=True, device="cpu", seed=seed)
        config = derive(TrainConfig.from_mapping(document))
        return make_task(config, batch=1).observation_size

    def sb3(*, shared: bool) -> Learner:
        if not is_cpu:
            raise _NotHere(ON_A_CPU)
        options: dict[str, Any] = {"width": width, "head": HEAD, "rate": LEARNING_RATE}
        return Sb3(task, columns(), shared=shared, seed=seed, **asdict(sizes), **options)

    def jax() -> Learner:
        if task != MARKET:
            raise _NotHere(ON_MARKETS)
        shape = Shape(
            **asdict(sizes),
            width=width,
            features=columns() - 2,
            head=HEAD,
            learning_rate=LEARNING_RATE,
            half=half,
        )
        return Jax(shape, seed=seed)

    makers: dict[str, Callable[[], Learner]] = {
        "sb3-contrib, its defaults, two LSTMs": partial(sb3, shared=False),
        "sb3-contrib, one LSTM": partial(sb3, shared=True),
        "JAX, one program": jax,
        "ours, its defaults": partial(ours, task, plain=False),
        "ours, one scalar critic, AdamW": partial(ours, task, plain=True),
    }
    if task == TASK:
        gymnasium = {
            "ours, its defaults, Gymnasium": partial(ours, f"gym:{TASK}", plain=False),
            "ours, one scalar critic, AdamW, Gymnasium": partial(ours, f"gym:{TASK}", plain=True),
        }
        makers |= gymnasium if is_cpu else {}
    return makers


def compare(
    width: int,
    *,
    task: str = TASK,
    sizes: Sizes = SIZES,
    updates: int = 1,
    rounds: int = 5,
    device: str = "cpu",
    seed: int = 0,
    settings: Sequence[str] = (),
    half: bool = False,
    peers: bool = True,
) -> Comparison:
    """Return the speed of every way that can run here, each measured once a round.

    All take turns, so that a slow minute of the machine falls on all of them. The first update of
    each is not counted, and calls and memory are those of updates of their own.

    Raises:
        RangeError: if the minibatches do not divide the environments.
    """
    _check(sizes)
    options: dict[str, Any] = {"device": device, "seed": seed, "settings": settings, "half": half}
    learners: dict[str, Learner] = {}
    skipped: dict[str, str] = {}
    for name, make in ways(task, sizes, width, **options).items():
        if not (peers or name.startswith("ours")):
            continue
        try:
            learners[name] = make()
        except _NotHere as reason:
            skipped[name] = str(reason)
        except ImportError as error:  # without a peer, the others are measured alone
            skipped[name] = _reason(name, error)
    for learner in learners.values():
        learner(1)
        if isinstance(learner, Ours):
            learner.forget()
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in learners}
    for _ in range(rounds):
        for name, learner in learners.items():
            began, worked = _now(torch.device(device)), time.process_time()
            learner(updates)
            ended, done = _now(torch.device(device)), time.process_time()
            samples = updates * sizes.samples
            rates[name].append((samples / (ended - began), samples / max(done - worked, 1e-9)))
    rows = [
        _row(name, learner, rates[name], width=width, task=task, sizes=sizes, device=device)
        for name, learner in learners.items()
    ]
    return Comparison(rows, skipped)


def _row(
    name: str,
    learner: Learner,
    rates: Sequence[tuple[float, float]],
    *,
    width: int,
    task: str,
    sizes: Sizes,
    device: str,
) -> Row:
    """Return the figures of one way, with what is counted in updates that are not timed."""
    own: dict[str, Any] = {}
    if isinstance(learner, Ours):
        own["milliseconds"] = learner.milliseconds()
        own["work"] = work(learner.ppo.agent, learner.ppo.config)
    forget_peak(device)
    learner(1)
    own["peak_mib"] = peak_mib(device)
    own["calls"] = None if isinstance(learner, Jax) else calls(partial(learner, 1), device)
    if isinstance(learner, Ours):
        own["upkeep"] = learner.upkeep()
    return Row(
        width,
        name,
        tuple(wall for wall, _ in rates),
        processor_rates=tuple(processor for _, processor in rates),
        task=task,
        environments=sizes.environments,
        **own,
    )


def ratios(rows: Sequence[Row], *, processor: bool = False) -> list[float | None]:
    """Return how many times the fastest peer of the same sizes each row is; None without one.

    Args:
        rows: of one run.
        processor: by processor time, which others on the machine disturb less.
    """

    def speed(row: Row) -> float:
        return row.processor_rate if processor else row.rate

    def group(row: Row) -> tuple[str, int, int]:
        return row.task, row.width, row.environments

    fastest: dict[tuple[str, int, int], float] = {}
    for row in rows:
        if row.is_peer:
            fastest[group(row)] = max(speed(row), fastest.get(group(row), 0.0))
    return [speed(row) / fastest[group(row)] if fastest.get(group(row)) else None for row in rows]


def chosen_tasks(text: str) -> list[str]:
    """Return the tasks of a list such as `cartpole,market`.

    Raises:
        ChoiceError: for another name.
    """
    names = [part.strip() for part in text.split(",")]
    for name in names:
        if name not in TASKS:
            raise ChoiceError(
                wrong=f"`--task` must be {' or '.join(TASKS)}, or both with a comma between them",
                found=repr(text),
                remedy="Write it as cartpole,market.",
            )
    return [TASKS[name] for name in names]


def _reason(name: str, error: ImportError) -> str:
    if name.startswith("sb3"):
        return NOT_INSTALLED
    return NO_JAX if name.startswith("JAX") else str(error)


def _check(sizes: Sizes) -> None:
    if sizes.environments % sizes.minibatches:
        raise RangeError(
            wrong="`--minibatches` must divide `--environments`, so that both sides learn from "
            "equal ones",
            found=f"{sizes.minibatches} minibatches of {sizes.environments} environments",
            remedy="Choose for example 4 of 16.",
        )


def _now(device: torch.device) -> float:
    """Return the time once the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
