"""Run the jobs of a campaign whose rows its file does not hold yet.

A line of the file is one finished job: its key, the version that ran it, and its rows. A job is
known by its key, a hash of everything that it depends on, so that rows of other settings stay in
the file and are never taken for those of new ones.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import islice
from typing import Any, Protocol, TypeVar

from stormsail import __version__
from stormsail.bench.campaign import RowLog, damaged
from stormsail.bench.processes import one_thread, one_thread_processes


class Keyed(Protocol):
    """A job that says what it depends on."""

    @property
    def key(self) -> str:
        """Hash of everything that its rows depend on."""


class Fields(Protocol):
    """A row: a named tuple."""

    def _asdict(self) -> dict[str, Any]:
        """Return the values by name."""


Job = TypeVar("Job", bound=Keyed)
Row = TypeVar("Row", bound=Fields)


def run_missing(
    run: Callable[[Job], list[Row]],
    jobs: Sequence[Job],
    *,
    row: Callable[..., Row],
    processes: int,
    log: RowLog | None = None,
    say: Callable[[list[Row]], None] = lambda _: None,
) -> list[list[Row]]:
    """Return the rows of all jobs in their order; run those that the log does not hold.

    Args:
        run: does one job; for other processes it must be a function of a module.
        jobs: all that are wanted; each key once.
        row: makes a row from its fields.
        processes: how many at a time; 1 stays in this process.
        log: file of finished jobs; each new one is added to it when it is done. None: no file.
        say: called with the rows of each new job, in the order in which they are done.

    Raises:
        ArtifactError: if a line of the log is none of a finished job.
    """
    keys = [job.key for job in jobs]
    done = {} if log is None else finished(log, row)
    missing = [(key, job) for key, job in zip(keys, jobs, strict=True) if key not in done]

    def keep(key: str, rows: list[Row]) -> None:
        if log is not None:
            fields = [each._asdict() for each in rows]
            log.append({"key": key, "version": __version__, "rows": fields})
        done[key] = rows
        say(rows)

    if processes == 1:
        with one_thread():
            for key, job in missing:
                keep(key, run(job))
    elif missing:
        with one_thread_processes(processes) as pool:
            left, running = iter(missing), dict[Future[list[Row]], str]()
            # never more than there are processes: after an error or Ctrl-C no other job begins
            for key, job in islice(left, processes):
                running[pool.submit(run, job)] = key
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    keep(running.pop(future), future.result())
                    for key, job in islice(left, 1):
                        running[pool.submit(run, job)] = key
    return [done[key] for key in keys]


def finished(log: RowLog, row: Callable[..., Row]) -> dict[str, list[Row]]:
    """Return the rows of the finished jobs of a log, by key; of two with one key the later.

    Raises:
        ArtifactError: if a line of the log is none of a finished job.
    """
    done = {}
    for number, line in enumerate(log.lines, start=1):
        try:
            done[line["key"]] = [row(**_frozen(fields)) for fields in line["rows"]]
        except (KeyError, TypeError, AttributeError) as error:
            problem = f"{type(error).__name__}: {error}"
            raise damaged(log.path, number, problem) from None
    return done


def _frozen(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields whose lists are tuples, as rows have them."""
    return {name: tuple(x) if isinstance(x, list) else x for name, x in fields.items()}
