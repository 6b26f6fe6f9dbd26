"""Engine in this process: members take turns, or train side by side, and share bars and features.

Side by side each member has a thread of its own, and on a GPU a stream of its own: an update is a
few launches of captured graphs, and the small kernels of several members fill the device together.
One member at a time runs Python, until it waits for the device (`core.turns`). On a CPU `Processes`
uses more cores.
"""

import itertools
import queue
import threading
from collections.abc import Iterator, Sequence

import torch

from stormsail.algorithms.population.jobs import Call, Feed, Job, Outcome
from stormsail.core.errors import RangeError
from stormsail.core.signals import Relay, handled_signals
from stormsail.core.turns import Turns

_Done = tuple[Job, Outcome | Exception]

_WAIT = 0.2
"""Seconds between two looks at what has come in."""


class InProcess:
    """Carries out jobs in this process.

    Args:
        workers: how many at the same time, each in a thread; 1 carries out one after the other in
            the thread of the caller.

    Raises:
        RangeError: if there would be no worker.
    """

    def __init__(self, *, workers: int = 1) -> None:
        if workers < 1:
            raise RangeError(
                wrong="`workers` must be at least 1", found=str(workers), remedy="Use 1 or more."
            )
        self._workers = workers

    def run(self, call: Call, jobs: Sequence[Job]) -> Iterator[_Done]:
        """Carry out jobs in their order; see `Engine.run`."""
        left = iter(jobs)
        yield from self.stream(call, lambda: next(left, None))

    def stream(self, call: Call, feed: Feed) -> Iterator[_Done]:
        """Carry out jobs as they are asked for; see `StreamingEngine.stream`."""
        if self._workers > 1:
            yield from self._side_by_side(call, feed)
            return
        while (job := feed()) is not None:
            yield job, _outcome(call, job)

    def _side_by_side(self, call: Call, feed: Feed) -> Iterator[_Done]:
        """Keep as many threads busy as there are workers; a signal ends them all."""
        done: queue.SimpleQueue[_Done | BaseException] = queue.SimpleQueue()
        running: list[threading.Thread] = []
        relay, interrupted, turns = Relay(), list[BaseException](), Turns()
        with handled_signals(relay):
            while True:
                running = [thread for thread in running if thread.is_alive()]
                free = 0 if interrupted else self._workers - len(running)
                for job in itertools.islice(iter(feed, None), free):
                    running.append(threading.Thread(target=_member, args=(call, job, done, turns)))
                    running[-1].start()
                if not running and done.empty():
                    break
                try:
                    result = done.get(timeout=_WAIT)
                except queue.Empty:  # a wait without end would keep signals waiting
                    relay.repeat()
                    continue
                if isinstance(result, BaseException):
                    interrupted.append(result)
                else:
                    yield result
            if interrupted:
                raise interrupted[0]

    def close(self) -> None:
        """Nothing is held."""


def _outcome(call: Call, job: Job) -> Outcome | Exception:
    try:
        return call(job)
    except Exception as error:  # noqa: BLE001 - the driver decides what it means
        return error


def _member(
    call: Call, job: Job, done: "queue.SimpleQueue[_Done | BaseException]", turns: Turns
) -> None:
    """Carry out a job in a thread, on a stream of its own where there is a GPU."""
    stream = torch.cuda.Stream() if torch.cuda.is_available() else None
    try:
        with turns.joined(), torch.cuda.stream(stream):
            done.put((job, _outcome(call, job)))
    except BaseException as error:  # noqa: BLE001 - an interruption is raised by the main thread
        done.put(error)
