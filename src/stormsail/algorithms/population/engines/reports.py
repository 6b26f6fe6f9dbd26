"""Jobs and their results as bytes, the same for every engine whose workers live elsewhere.

The driver packs a job, a worker carries it out and packs what came of it, the driver unpacks that.
An exception comes home as itself, with the traceback of the worker as a note.
"""

import os
import pickle
import sys
import traceback
from dataclasses import replace
from pathlib import Path

from stormsail.algorithms.population.jobs import Call, Job, Outcome
from stormsail.core import plugins
from stormsail.core.errors import ArgumentError, WorkerError

# What pickle raises, by Python version and by the kind of object.
_REFUSALS = (pickle.PicklingError, AttributeError, TypeError)


def pack_job(call: Call, job: Job) -> bytes:
    """Return a job and what carries it out, with the plug-ins loaded here, for a worker.

    Raises:
        ArgumentError: if one of them cannot be sent.
    """
    try:
        work = pickle.dumps((call, job))
        # apart from the job, which may name what a plug-in defines
        return pickle.dumps((plugins.carried(), work))
    except _REFUSALS as error:
        raise ArgumentError(
            "not-picklable",
            wrong="a job and the function that carries it out must be picklable to reach a worker",
            found=f"{type(error).__name__}: {error}",
            remedy="Pass a function of a module, not a lambda, a closure or a bound method of a "
            "local class, and plain values; or use the engine `in-process`.",
        ) from error


def carry_out(work: bytes, *, root: Path | None = None) -> bytes:
    """Carry out a packed job, in a worker; return its report, whatever happens.

    Args:
        work: made by `pack_job`.
        root: where the worker has the folder of the population, if not where the driver has it.
    """
    try:
        carried, inside = pickle.loads(work)  # noqa: S301 - made by the driver of this population
        plugins.restore(carried)
        call, job = pickle.loads(inside)  # noqa: S301 - likewise
        outcome = call(job if root is None else replace(job, root=root))
    except Exception as error:  # noqa: BLE001 - travels home, where the driver decides
        return _raised(error)
    try:
        return pickle.dumps(outcome)
    except _REFUSALS as error:
        return _raised(_unsendable("an outcome", error))


def one_thread() -> None:
    """Let torch use one thread in this worker, whether it is loaded or the first job will load it.

    Workers share the cores. A training has its own setting, `threads`, and takes that.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def unpack_report(report: bytes) -> Outcome | Exception:
    """Return the outcome in a report, or the exception that the job raised."""
    result: Outcome | Exception = pickle.loads(report)  # noqa: S301 - made by our own worker
    return result


def worker_lost(job: Job, *, deaths: int, last: str) -> WorkerError:
    """Return the error for a job whose workers died as often as is allowed."""
    return WorkerError(
        "worker-lost",
        wrong=f"a worker must live until {job.words}",
        found=f"{deaths} workers that died one after the other, the last of {last}",
        remedy="Look for a lack of memory first. The same command goes on from the ledger; "
        "finished rounds are not done again.",
    )


def _raised(error: Exception) -> bytes:
    """Return the report of an exception; of a stand-in with its words if it cannot travel."""
    words = "".join(traceback.format_exception(error))
    try:
        again = pickle.loads(pickle.dumps(error))  # noqa: S301 - bytes of the line itself
        same = type(again) is type(error) and str(again) == str(error)
    except Exception as problem:  # noqa: BLE001 - whatever its own `__reduce__` does
        same, again = False, problem
    if not same:
        error = _unsendable("an exception", error)
    error.add_note(f"In the worker:\n{words}")
    return pickle.dumps(error)


def _unsendable(what: str, error: Exception) -> WorkerError:
    return WorkerError(
        "not-picklable",
        wrong=f"{what} must be picklable to come home from a worker",
        found=f"{type(error).__name__}: {error}",
        remedy="The note below has the traceback; use plain values, or the engine `in-process`.",
    )
