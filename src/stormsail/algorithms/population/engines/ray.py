"""Engine on a Ray cluster: one actor per member, on this machine or on many.

Ray places the actors over the nodes, one core and a share of a GPU each. An actor that dies, alone
or with its node, is replaced wherever there is room, and its job is done again, a bounded number of
times; Ray's own restarts are off, so that nothing is done again unseen. Actors belong to the
driver: when it ends, however it ends, Ray ends them.

Where all nodes see the driver's folder under the same path, jobs work in it (`shared`). Otherwise
folders travel through Ray's object store (`object-store`): what a job needs is sent with it, it
works in a temporary folder of its node, and the member's folder comes home with the outcome.
"""

import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from stormsail.algorithms.population.engines.reports import (
    carry_out,
    one_thread,
    pack_job,
    unpack_report,
    worker_lost,
)
from stormsail.algorithms.population.engines.transport import (
    ARRIVALS,
    install,
    pack_folders,
    restore,
    unpack_folders,
)
from stormsail.algorithms.population.jobs import Call, Job, Outcome
from stormsail.core.errors import ChoiceError, ConfigError, RangeError, WorkerError, nearest
from stormsail.core.files.atomic import FolderBusyError, locked_folder

Storage = Literal["shared", "object-store"]
"""How members' folders reach the workers."""

_STORAGES: tuple[Storage, ...] = ("shared", "object-store")
_ATTEMPTS = 3
_LOOK_EVERY = 2.0  # seconds between looks at what cannot be placed
_PATIENCE = 60.0
_MEMBERS = "members"
_SCRATCH = "stormsail-member-"
_LEFT_FOR = 600.0  # seconds; a folder that is not locked may have been made just now
_AT_HOME = {_MEMBERS, ARRIVALS, "logs"}  # what no job needs as a whole


class RayCluster:
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
        if not self._fits():
            error = self._unfit()
            self.close()
            raise error

    def run(self, call: Call, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome | Exception]]:
        """Carry out jobs, each handed back as soon as it is done; see `Engine.run`.

        With `object-store` the member's folder has come home by then.

        Raises:
            ArgumentError: if a job cannot be sent to another process.
        """
        works = [pack_job(call, job) for job in jobs]
        sent = _Sent(self._ray) if self._stored else None
        deaths = [0] * len(jobs)
        busy = {
            self._begin(job, work, sent): k
            for k, (job, work) in enumerate(zip(jobs, works, strict=True))
        }
        try:
            while busy:
                done = self._next(busy)
                if done is None:  # there is no room for the others, and none will come
                    for ref in [ref for ref in busy if not self._placed(jobs[busy[ref]])]:
                        job = jobs[busy.pop(ref)]
                        self._end(job)
                        yield job, self._unfit()
                    continue
                index = busy.pop(done)
                job = jobs[index]
                try:
                    report, folder = self._ray.get(done)
                except self._ray.exceptions.RayError as error:
                    self._end(job)
                    deaths[index] += 1
                    if deaths[index] < self._attempts:
                        busy[self._begin(job, works[index], sent)] = index
                    else:
                        last = f"{type(error).__name__}: {_first_words(error)}"
                        yield job, worker_lost(job, deaths=deaths[index], last=last)
                    continue
                if folder is not None:
                    install(folder, job.root, _folder(job.member))
                if not all(self._placed(jobs[other]) for other in busy.values()):
                    self._end(job)  # somebody waits for the room
                yield job, unpack_report(report)
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
        folders = [] if sent is None else sent.folders(job)
        home = None if sent is None else _folder(job.member)
        return self._actors[job.member].handle.advance.remote(work, home, *folders)

    def _new_actor(self) -> "_Actor":
        actor = self._ray.remote(_Member).options(
            num_cpus=self._needs["CPU"],
            num_gpus=self._needs["GPU"],
            scheduling_strategy="SPREAD",
            max_restarts=0,
            max_task_retries=0,
        )
        handle = actor.remote()
        return _Actor(handle, handle.ready.remote())

    def _end(self, job: Job) -> None:
        actor = self._actors.pop(job.member, None)
        if actor is not None:
            _kill(self._ray, actor)

    def _placed(self, job: Job) -> bool:
        """Return whether the actor of a job has room and runs, or is known to be dead."""
        done, _ = self._ray.wait([self._actors[job.member].ready], timeout=0, fetch_local=False)
        return bool(done)

    def _next(self, busy: Collection[object]) -> object | None:
        """Wait for a result; return None if none has come while no node had room for an actor."""
        unfit_since = None
        while True:
            done, _ = self._ray.wait(list(busy), num_returns=1, timeout=_LOOK_EVERY)
            if done:
                return done[0]
            if self._fits():
                unfit_since = None
                continue
            unfit_since = unfit_since or time.monotonic()
            if time.monotonic() - unfit_since >= self._patience:
                return None

    def _fits(self) -> bool:
        """Return whether some node is large enough for an actor, busy or not."""
        return any(
            all(node["Resources"].get(kind, 0.0) >= need for kind, need in self._needs.items())
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


@dataclass(frozen=True)
class _Actor:
    """An actor and the reference that is there once it runs."""

    handle: Any
    ready: Any


class _Sent:
    """Folders of one round in the object store: each is packed once, whoever needs it.

    They are those of the beginning of the round. A job that is tried again gets the same.
    """

    def __init__(self, ray: ModuleType) -> None:
        self._ray = ray
        self._references: dict[tuple[Path, str], object] = {}

    def folders(self, job: Job) -> list[object]:
        """Return references to all that a job reads: what all share, its own, its source's."""
        restore(job.root)
        names = [_folder(job.member)]
        if job.exploit is not None and job.exploit.source != job.member:
            names.append(_folder(job.exploit.source))
        return [self._reference(job.root, name) for name in ("", *names)]

    def _reference(self, root: Path, name: str) -> object:
        if (root, name) not in self._references:
            names = [name] if name else _common(root)
            self._references[root, name] = self._ray.put(pack_folders(root, names))
        return self._references[root, name]


class _Member:
    """What runs on a node of the cluster: the jobs of one member, one after the other."""

    def __init__(self) -> None:
        one_thread()

    def ready(self) -> bool:
        return True

    def advance(self, work: bytes, home: str | None, *folders: bytes) -> tuple[bytes, bytes | None]:
        """Carry out a job; return its report, and the folder `home` where it must travel."""
        if home is None:
            return carry_out(work), None
        with _scratch() as root:
            for folder in folders:
                unpack_folders(folder, root)
            report = carry_out(work, root=root)
            return report, pack_folders(root, [home])


@contextmanager
def _scratch() -> Iterator[Path]:
    """Make a folder for one job, and remove those of jobs that were killed on this node."""
    for left in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*"):
        with suppress(FolderBusyError, OSError):  # somebody works there, or it is not ours
            if time.time() - left.stat().st_mtime > _LEFT_FOR:
                with locked_folder(left):
                    shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH) as scratch, locked_folder(Path(scratch)):
        yield Path(scratch)


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
            # Without an address Ray would take any cluster that it finds.
            ray.init("local" if address is None else address, **settings)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise WorkerError(
                "cluster-unreachable",
                wrong=f"a Ray cluster must answer at {address or 'this machine'}",
                found=_first_words(error),
                remedy="Start one with `ray start --head`, or check the address; without "
                "`--address` one is started on this machine.",
            ) from error


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


def _folder(member: int) -> str:
    return f"{_MEMBERS}/{member:02}"


def _common(root: Path) -> list[str]:
    """Return what lies in the folder of a population beside its members."""
    return sorted(path.name for path in root.iterdir() if path.name not in _AT_HOME)


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
        "`gpus` must be a share below 1 or a whole number": (gpus, 0 <= gpus < 1 or gpus % 1 == 0),
    }
    for wrong, (value, holds) in rules.items():
        if not holds:
            raise RangeError(wrong=wrong, found=str(value), remedy="Change it.")
