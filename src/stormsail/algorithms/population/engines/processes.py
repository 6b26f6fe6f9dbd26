"""Engine of several processes on one machine, each with one torch thread.

A worker that dies is replaced and its job done again, a bounded number of times: a job is a
function of files, so doing it again gives the same bits. A worker ends with its driver, however
that ends: it reads its pipe all the time in a thread of its own, and the end of the pipe is the end
of the worker and of all processes that its job has started.
"""

import os
import queue
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.util import Finalize
from pathlib import Path

from stormsail.algorithms.population.engines.reports import (
    carry_out,
    one_thread,
    pack_job,
    unpack_report,
    worker_lost,
)
from stormsail.algorithms.population.jobs import Call, Feed, Job, Outcome
from stormsail.core.errors import RangeError

_CONTEXT = get_context("spawn")  # a fork would copy locks of threads that do not exist in the copy
_ATTEMPTS = 3
_LOGS = "logs"
_ALIVE_EVERY = 1.0  # seconds; see `_Worker.is_over`


class Processes:
    """Carries out jobs in processes, each one job at a time.

    Workers stay between rounds, so that a round does not pay for importing torch. What a job prints
    goes to the file of its worker in `logs` of the population that a worker began with, and never
    between the lines of the driver.

    Args:
        workers: how many at most, None one for each core; on a GPU all of them share it.
        attempts: how often a job is tried if its workers die; a job that raises is tried once.
        on_wait: called about once a second while jobs are being carried out.

    Raises:
        RangeError: if there would be no worker or no attempt.
    """

    def __init__(
        self,
        *,
        workers: int | None = None,
        attempts: int = _ATTEMPTS,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        workers = (os.cpu_count() or 1) if workers is None else workers
        for name, value in (("workers", workers), ("attempts", attempts)):
            if value < 1:
                raise RangeError(
                    wrong=f"`{name}` must be at least 1", found=str(value), remedy="Use 1 or more."
                )
        self._count, self._attempts, self._on_wait = workers, attempts, on_wait
        self._free = list(range(workers))  # numbers of log files that no worker writes to
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        # At the exit of the interpreter `multiprocessing` joins its processes: ours must be gone.
        self._finalize = Finalize(self, _end_all, args=(self._all,), exitpriority=20)

    def run(self, call: Call, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome | Exception]]:
        """Carry out jobs, each handed back as soon as it is done; see `Engine.run`.

        Raises:
            ArgumentError: if a job cannot be sent to another process.
        """
        works = deque([_Work(job, pack_job(call, job)) for job in jobs])
        yield from self._carried_out(lambda: works.popleft() if works else None)

    def stream(self, call: Call, feed: Feed) -> Iterator[tuple[Job, Outcome | Exception]]:
        """Carry out jobs as they are asked for; see `StreamingEngine.stream`.

        Raises:
            ArgumentError: if a job cannot be sent to another process.
        """

        def packed() -> _Work | None:
            job = feed()
            return None if job is None else _Work(job, pack_job(call, job))

        yield from self._carried_out(packed)

    def _carried_out(
        self, feed: Callable[[], "_Work | None"]
    ) -> Iterator[tuple[Job, Outcome | Exception]]:
        again: deque[_Work] = deque()  # work of workers that died
        busy: dict[_Worker, _Work] = {}
        try:
            while True:
                while len(busy) < self._count:
                    work = again.popleft() if again else feed()
                    if work is None:
                        break
                    worker = self._worker(work.job.root / _LOGS)
                    busy[worker] = work
                    worker.begin(work.data)
                if not busy:
                    return
                for worker in _over(busy, self._on_wait):
                    work = busy.pop(worker)
                    report = worker.report()
                    if report is not None:
                        self._idle.append(worker)
                        yield work.job, unpack_report(report)
                        continue
                    self._end(worker)
                    work.deaths += 1
                    if work.deaths < self._attempts:
                        again.append(work)
                    else:
                        last = f"{worker.cause()}; its output is in {worker.log}"
                        yield work.job, worker_lost(work.job, deaths=work.deaths, last=last)
        finally:  # an interrupt, or a driver that wants no more: nobody waits for these
            for worker in busy:
                self._end(worker)

    def close(self) -> None:
        """End all workers; what they are doing is lost."""
        for worker in tuple(self._all):
            self._end(worker)
        self._idle.clear()

    def _worker(self, logs: Path) -> "_Worker":
        while self._idle:
            worker = self._idle.pop()
            if worker.is_alive():
                return worker
            self._end(worker)
        logs.mkdir(parents=True, exist_ok=True)
        number = min(self._free)
        worker = _Worker(number, logs / f"worker-{number:02}.log")
        self._free.remove(number)
        self._all.add(worker)
        return worker

    def _end(self, worker: "_Worker") -> None:
        worker.end()
        if worker in self._all:
            self._all.remove(worker)
            self._free.append(worker.number)


@dataclass
class _Work:
    """A job as it is sent to a worker, and how many workers died of it."""

    job: Job
    data: bytes
    deaths: int = 0


def _over(busy: Collection["_Worker"], on_wait: Callable[[], None]) -> list["_Worker"]:
    """Wait until a worker has reported or died; return all that have."""
    while True:
        wait([worker.channel for worker in busy], timeout=_ALIVE_EVERY)
        over = [worker for worker in busy if worker.is_over()]
        if over:
            return over
        on_wait()


def _end_all(workers: set["_Worker"]) -> None:
    for worker in tuple(workers):
        worker.end()


class _Worker:
    """The driver's side of one process."""

    def __init__(self, number: int, log: Path) -> None:
        self.number, self.log = number, log
        self.channel, theirs = _CONTEXT.Pipe()
        # Not a daemon: those may not start processes, which some environments do.
        self._process = _CONTEXT.Process(target=_work, args=(theirs, log), daemon=False)
        with _interrupts_held_back():
            self._process.start()
        theirs.close()  # else the end of the worker would not be the end of the pipe

    def begin(self, work: bytes) -> None:
        """Send a job; if the worker is dead, `report` will say so."""
        with suppress(OSError):
            self.channel.send_bytes(work)

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def is_over(self) -> bool:
        """Return whether there is a report, or never will be.

        The end of the pipe alone is no proof: a process that the job has forked holds it open.
        """
        return self.channel.poll() or not self._process.is_alive()

    def report(self) -> bytes | None:
        """Return the report of the job, or None if the worker died before it was complete."""
        try:
            return self.channel.recv_bytes() if self.channel.poll() else None
        except (EOFError, OSError):
            return None

    def cause(self) -> str:
        """Return what a dead worker died of."""
        code = self._process.exitcode
        if code is not None and code < 0:
            return f"signal {signal.Signals(-code).name}"
        return f"exit code {code}"

    def end(self) -> None:
        """End the process and all that its job has started; a job may be cut off anywhere."""
        self.channel.close()
        if self._process.pid is not None:
            with suppress(ProcessLookupError, PermissionError):  # gone, or not yet a group
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach; it still reaches the driver, which ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- what follows runs in the worker


def _work(channel: Connection, log: Path) -> None:
    """Carry out jobs until the driver closes the pipe."""
    works: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    os.setpgid(0, 0)  # a group of its own: Ctrl-C passes it by, and its children end with it
    threading.Thread(target=_listen, args=(channel, works), daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    _redirect(log)
    one_thread()
    while True:
        channel.send_bytes(carry_out(works.get()))


def _listen(channel: Connection, works: "queue.SimpleQueue[bytes]") -> None:
    """Take in jobs; when the driver is gone, end at once, whatever is being done."""
    while True:
        try:
            works.put(channel.recv_bytes())
        except (EOFError, OSError):
            os.killpg(os.getpid(), signal.SIGKILL)


def _redirect(log: Path) -> None:
    """Let all output of this process and of its children go to a file."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
