"""Engine on a Ray cluster: one actor per member, on this machine or on many.

Ray places the actors over the nodes, one core and a share of a GPU each. An actor that dies, alone
or with its node, is replaced wherever there is room, and its job is done again, a bounded number of
times; Ray's own restarts are off, so that nothing is done again unseen. Actors belong to the
driver: when it ends, however it ends, Ray ends them.

Where all nodes see the driver's folder under the same path, jobs work in it (`shared`). Otherwise
folders travel through Ray's object store (`object-store`): what a job needs is sent with it, it
works in a temporary folder of its node, and the member's folder comes home with the outcome, and so
do its lines of the trial ledger. Bars are no part of a population: a node must have them under the
path of the configuration, in the driver's working folder if that path is relative.
"""

import logging
import os
import signal
import socket
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from stormsail.algorithms.population.engines.reports import (
    carry_out,
    one_thread,
    pack_job,
    unpack_report,
    worker_lost,
)
from stormsail.algorithms.population.engines.transport import pack_folders
from stormsail.algorithms.population.jobs import Call, Job, Outcome
from stormsail.core.clock import NANOSECONDS, SystemClock
from stormsail.core.errors import ChoiceError, ConfigError, RangeError, WorkerError, nearest

if TYPE_CHECKING:  # it imports torch, which an actor with a light job can do without
    from stormsail.algorithms.population.engines.goods import Goods

Storage = Literal["shared", "object-store"]
"""How members' folders reach the workers."""

_STORAGES: tuple[Storage, ...] = ("shared", "object-store")
_ATTEMPTS = 3
_LOOK_EVERY = 2.0  # seconds between looks at what cannot be placed
_STARTING = 15.0  # seconds within which an actor may just be starting, on a busy machine
_PATIENCE = 60.0
_KNOCK = 5.0  # seconds


class Ray:
    """Carries out jobs in actors of a Ray cluster, one per member.

    Where there is room for fewer actors than members, these take turns. Otherwise actors stay
    between rounds, so that a round does not pay for importing torch.

    Args:
        address: of the cluster: None starts one on this machine for as long as the engine lives,
            `auto` is the one that runs on this machine, `ray://HOST:10001` one elsewhere.
        cpus: cores of an actor; for placement only, jobs compute with one thread.
        gpus: GPUs of an actor: 0, a share such as 0.25, or a whole number.
        storage: how members' folders reach the actors.
        attempts: how often a job is tried if its actors die; a job that raises is tried once.
        patience: seconds for which a cluster may have no node large enough for an actor.

    Raises:
        ConfigError: if Ray is not installed, or no node has what an actor needs.
        WorkerError: if there is no cluster at the address.
        RangeError, ChoiceError: if a setting makes no sense.
    """

    def __init__(
        self,
        *,
        address: str | None = None,
        cpus: float = 1.0,
        gpus: float = 0.0,
        storage: Storage = "shared",
        attempts: int = _ATTEMPTS,
        patience: float = _PATIENCE,
    ) -> None:
        _check(cpus=cpus, gpus=gpus, storage=storage, attempts=attempts)
        self._needs = {"CPU": cpus, "GPU": gpus}
        self._stored, self._attempts, self._patience = storage != "shared", attempts, patience
        self._actors: dict[int, _Actor] = {}
        self._ray = load_ray()
        self._ours = not self._ray.is_initialized()
        if self._ours:
            _connect(self._ray, address)
        if not self._room():
            error = self._unfit()
            self.close()
            raise error

    def run(self, call: Call, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome | Exception]]:
        """Carry out jobs, each handed back as soon as it is done; see `Engine.run`.

        With `object-store` the member's folder has come home by then.

        Raises:
            ArgumentError: if a job cannot be sent to another process.
        """
        works = [pack_job(call, replace(job, root=job.root.resolve())) for job in jobs]
        sent = _Sent(self._ray) if self._stored else None
        deaths = [0] * len(jobs)
        busy = {
            self._begin(job, work, sent): k
            for k, (job, work) in enumerate(zip(jobs, works, strict=True))
        }
        try:
            while busy:
                done = self._next(busy, [jobs[index] for index in busy.values()])
                if done is None:  # there is no room for the others, and none will come
                    for ref in [ref for ref in busy if not self._placed(jobs[busy[ref]])]:
                        job = jobs[busy.pop(ref)]
                        self._end(job)
                        yield job, self._unfit()
                    continue
                index = busy.pop(done)
                job = jobs[index]
                try:
                    result = self._ray.get(done)
                except self._ray.exceptions.RayError as error:
                    self._end(job)
                    deaths[index] += 1
                    if deaths[index] < self._attempts:
                        busy[self._begin(job, works[index], sent)] = index
                    else:
                        last = f"{type(error).__name__}: {_first_words(error)}"
                        yield job, worker_lost(job, deaths=deaths[index], last=last)
                    continue
                if len(self._actors) > self._room():
                    self._end(job)  # somebody waits for the place
                yield job, unpack_report(_brought_home(result, job) if self._stored else result)
        finally:  # an interrupt, or a driver that wants no more: nobody waits for these
            for index in busy.values():
                self._end(jobs[index])

    def close(self) -> None:
        """End all actors, and the cluster if this engine has started it."""
        for actor in self._actors.values():
            _kill(self._ray, actor)
        self._actors.clear()
        if self._ours:
            self._ray.shutdown()
            self._ours = False

    def _begin(self, job: Job, work: bytes, sent: "_Sent | None") -> object:
        """Hand a job to the actor of its member; return the reference to the result."""
        if job.member not in self._actors:
            self._actors[job.member] = self._new_actor()
        handle = self._actors[job.member].handle
        if sent is None:
            return handle.advance.remote(work)
        name, folders = job.root.resolve().name, sent.folders(job)
        return handle.advance_elsewhere.remote(work, name, job.member, *folders)

    def _new_actor(self) -> "_Actor":
        actor = self._ray.remote(_Member).options(
            num_cpus=self._needs["CPU"],
            num_gpus=self._needs["GPU"],
            scheduling_strategy="SPREAD",
            max_restarts=0,
            max_task_retries=0,
        )
        handle = actor.remote(str(Path.cwd()), sees_gpus=self._needs["GPU"] > 0.0)
        return _Actor(handle, handle.ready.remote(), SystemClock().monotonic_ns())

    def _end(self, job: Job) -> None:
        actor = self._actors.pop(job.member, None)
        if actor is not None:
            _kill(self._ray, actor)

    def _placed(self, job: Job) -> bool:
        """Return whether the actor of a job has room and runs, or is known to be dead."""
        done, _ = self._ray.wait([self._actors[job.member].ready], timeout=0, fetch_local=False)
        return bool(done)

    def _next(self, busy: Collection[object], jobs: Sequence[Job]) -> object | None:
        """Wait for a result; return None if none has come while no node had room for an actor."""
        clock, unfit_since = SystemClock(), None
        while True:
            done, _ = self._ray.wait(list(busy), num_returns=1, timeout=_LOOK_EVERY)
            if done:
                result: object = done[0]
                return result
            self._make_way(jobs)
            if self._room():
                unfit_since = None
                continue
            unfit_since = unfit_since or clock.monotonic_ns()
            if clock.monotonic_ns() - unfit_since >= self._patience * NANOSECONDS:
                return None

    def _make_way(self, jobs: Sequence[Job]) -> None:
        """End actors without a job if a job waits for a place: others use the cluster as well.

        An actor that was asked for a moment ago may have its place and be starting.
        """
        working = {job.member for job in jobs}
        idle = [member for member in self._actors if member not in working]
        latest = SystemClock().monotonic_ns() - _STARTING * NANOSECONDS
        old = [job for job in jobs if self._actors[job.member].since <= latest]
        if idle and not all(self._placed(job) for job in old):
            for member in idle:
                _kill(self._ray, self._actors.pop(member))

    def _room(self) -> int:
        """Return how many actors all nodes can hold together, if they hold nothing else."""
        needs = {kind: need for kind, need in self._needs.items() if need}
        return sum(
            min(int(node["Resources"].get(kind, 0.0) / need) for kind, need in needs.items())
            for node in self._ray.nodes()
            if node["Alive"]
        )

    def _unfit(self) -> ConfigError:
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        sizes = [f"{n.get('CPU', 0):g} cores and {n.get('GPU', 0):g} GPUs" for n in nodes]
        return ConfigError(
            "cluster-resources",
            wrong=f"a node of the cluster must have {self._needs['CPU']:g} cores and "
            f"{self._needs['GPU']:g} GPUs, which is what a member needs",
            found=" · ".join(sizes) or "no node",
            remedy="Give members less, or add a node; the same command goes on from the ledger.",
        )


def _brought_home(result: "tuple[bytes, Goods]", job: Job) -> bytes:
    """Put what a job has made elsewhere into the population; return its report."""
    from stormsail.algorithms.population.engines.goods import bring_home

    report, goods = result
    bring_home(goods, job)
    return report


@dataclass(frozen=True)
class _Actor:
    """An actor and the reference that is there once it runs."""

    handle: Any
    ready: Any
    since: int
    """When it was asked for, monotonic nanoseconds."""


class _Sent:
    """Folders of one round in the object store: each is packed once, whoever needs it.

    They are those of the beginning of the round. A job that is tried again gets the same.
    """

    def __init__(self, ray: ModuleType) -> None:
        self._ray = ray
        self._references: dict[tuple[Path, tuple[str, ...]], object] = {}

    def folders(self, job: Job) -> list[object]:
        """Return references to all that a job reads."""
        from stormsail.algorithms.population.engines.goods import read_by

        place = job.root.resolve().parent
        return [self._reference(place, names) for names in read_by(job)]

    def _reference(self, place: Path, names: tuple[str, ...]) -> object:
        if (place, names) not in self._references:
            self._references[place, names] = self._ray.put(pack_folders(place, names))
        return self._references[place, names]


class _Member:
    """What runs on a node of the cluster: the jobs of one member, one after the other.

    Ray says to an actor with a share of GPUs which ones it may use, and nothing to one without:
    that would see all of the node, where others have their shares.
    """

    def __init__(self, place: str, *, sees_gpus: bool) -> None:
        one_thread()
        if not sees_gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        if Path(place).is_dir():  # relative paths of a configuration mean the driver's folder
            os.chdir(place)

    def ready(self) -> bool:
        return True

    def advance(self, work: bytes) -> bytes:
        """Carry out a job in the driver's folder; return its report."""
        return carry_out(work)

    def advance_elsewhere(
        self, work: bytes, population: str, member: int, *folders: bytes
    ) -> "tuple[bytes, Goods]":
        """Carry out a job in a folder of this node; return its report and what must travel."""
        from stormsail.algorithms.population.engines.goods import work_elsewhere

        return work_elsewhere(work, population, member, folders)


def load_ray() -> ModuleType:
    """Return the package ray, quiet and without its usage statistics.

    Raises:
        ConfigError: if it is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray  # here, because it takes a second and few populations need it
    except ImportError as error:
        raise ConfigError(
            "missing-extra",
            wrong="the engine `ray` needs the package ray",
            found="no such package in this environment",
            remedy="Run `pip install 'stormsail[ray]'`, or use the engine `processes`.",
        ) from error
    module: ModuleType = ray
    return module


def _connect(ray: ModuleType, address: str | None) -> None:
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        settings |= {"include_dashboard": False}
    with _own_signals():
        try:
            _knock(address)
            _init(ray, address, settings)
        except Exception as error:  # `_passes` says why Ray's own kind is all of them
            where, remedy = (
                ("this machine", "End other programs, or use the engine `processes`.")
                if address is None
                else (
                    address,
                    "Start one with `ray start --head`, or check the address; without "
                    "`--address` one is started on this machine.",
                )
            )
            raise WorkerError(
                "cluster-unreachable",
                wrong=f"a Ray cluster must answer at {where}",
                found=_first_words(error),
                remedy=remedy,
            ) from error


def _init(ray: ModuleType, address: str | None, settings: dict[str, Any]) -> None:
    """Call `ray.init`; again where what stopped it may be gone the next time."""
    for attempt in range(_ATTEMPTS):
        try:
            # Without an address Ray would take any cluster that it finds.
            ray.init("local" if address is None else address, **settings)
        except Exception as error:
            if attempt == _ATTEMPTS - 1 or not _passes(error):
                raise
            ray.shutdown()
        else:
            return


def _passes(error: Exception) -> bool:
    """Return whether an error of `ray.init` is one of a busy machine.

    Each driver of a `ray://` address gets a server process on a port that was free when it was
    chosen. On a busy node another process may have taken the port by then; the next one has
    another port: ConnectionAbortedError. And a node gives up if its agent, a process that imports
    for seconds, is not there within 15; the next one finds the imports cached. Ray raises an
    `Exception` of no kind of its own for that.
    """
    return isinstance(error, ConnectionAbortedError) or type(error) is Exception


def _knock(address: str | None) -> None:
    """Raise OSError if nobody listens at an address with a port: Ray itself tries for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=_KNOCK).close()


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep what this process does on SIGTERM: `ray.init` sets a handler of its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _kill(ray: ModuleType, actor: _Actor) -> None:
    with suppress(ray.exceptions.RayError, ValueError, ConnectionError):  # dead already
        ray.kill(actor.handle)


def _first_words(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def _check(*, cpus: float, gpus: float, storage: str, attempts: int) -> None:
    if storage not in _STORAGES:
        guess = nearest(storage, _STORAGES)
        raise ChoiceError(
            wrong=f"`storage` must be one of {', '.join(_STORAGES)}",
            found=repr(storage),
            remedy=f"Did you mean {guess!r}?" if guess else "Use one of them.",
        )
    rules = {
        "`attempts` must be at least 1": (attempts, attempts >= 1),
        "`cpus` must be positive": (cpus, cpus > 0),
        "`gpus` must be a share below 1 or a whole number": (
            gpus,
            gpus >= 0 and (gpus < 1 or gpus % 1 == 0),
        ),
    }
    for wrong, (value, holds) in rules.items():
        if not holds:
            raise RangeError(wrong=wrong, found=str(value), remedy="Change it.")
