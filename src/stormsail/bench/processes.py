"""Run jobs in parallel processes, each with one torch thread.

Networks this small are slower with more threads, and sums over threads differ: with one, a job has
the same outcome whether it runs in this process or in one of several.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TypeVar

import torch

from stormsail.core import plugins
from stormsail.core.threads import torch_threads

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")


def side_by_side(
    run: Callable[[Job], Outcome],
    jobs: Iterable[Job],
    *,
    processes: int,
    say: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """Run jobs and return their outcomes, in the order of the jobs.

    Args:
        run: does one job; for other processes it must be a function of a module.
        jobs: to be done; they start in this order.
        processes: how many at a time; 1 stays in this process.
        say: called with each outcome, in this order.
    """
    if processes == 1:
        with one_thread():
            return _reported(map(run, jobs), say)
    with one_thread_processes(processes) as pool:
        return _reported(pool.map(run, jobs), say)


def as_finished(
    run: Callable[[Job], Outcome], jobs: Iterable[Job], *, processes: int
) -> Iterator[Outcome]:
    """Yield the outcome of each job as soon as it is there, whichever is first.

    For outcomes that are kept at once; arguments are those of `side_by_side`.
    """
    if processes == 1:
        with one_thread():
            yield from map(run, jobs)
        return
    with one_thread_processes(processes) as pool:
        for future in as_completed([pool.submit(run, job) for job in jobs]):
            yield future.result()


def _reported(outcomes: Iterable[Outcome], say: Callable[[Outcome], None]) -> list[Outcome]:
    kept = []
    for outcome in outcomes:
        say(outcome)
        kept.append(outcome)
    return kept


def one_thread_processes(count: int) -> ProcessPoolExecutor:
    """Return processes in which torch uses one thread, fresh ones and no copies of this."""
    return ProcessPoolExecutor(
        count, get_context("spawn"), initializer=_begin, initargs=(plugins.carried(),)
    )


def _begin(carried: tuple[plugins.Carried, ...]) -> None:
    """Prepare a process: one thread, and the plug-ins of the one that started it."""
    torch.set_num_threads(1)
    plugins.restore(carried)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread for a while, as a training does whose `threads` are derived."""
    with torch_threads(1):
        yield
