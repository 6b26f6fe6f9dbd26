"""What the tests of engines let workers do: small jobs on the files of a population's folder.

Workers import this module by its name, so it needs nothing of pytest.
"""

import hashlib
import os
import signal
import time
from pathlib import Path

from stormsail.algorithms.population.jobs import Exploit, Job, Outcome

LONG = 600.0  # seconds that no test waits for: what sleeps so long is cut off


def jobs(root: Path, count: int, *, round_: int = 0) -> list[Job]:
    return [Job(member=m, round=round_, root=root, target=5 * (round_ + 1)) for m in range(count)]


def folder(job: Job) -> Path:
    return job.root / "members" / f"{job.member:02}"


def outcome(job: Job, *, fitness: float = 0.0, words: str = "") -> Outcome:
    digest = hashlib.sha256(words.encode()).hexdigest()
    return Outcome(job.member, job.round, fitness, job.target, digest, {"ppo.gamma": fitness})


def advance(job: Job) -> Outcome:
    """Add a line to a file of the member, as its training would: a function of files."""
    path = folder(job) / "line.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = path.read_text() if path.exists() else ""
    if text.count("\n") <= job.round:  # else it was done before
        text += f"member {job.member} round {job.round}\n"
        path.write_text(text)
    return outcome(job, fitness=job.member + job.round / 10, words=text)


def where(job: Job) -> Outcome:
    """Say which process has done it, and whose child it is."""
    mark(job)
    return Outcome(job.member, job.round, float(os.getpid()), job.target, str(os.getppid()), {}, {})


def mark(job: Job) -> int:
    """Count how often a job has begun, in a file of the driver; return which time this is."""
    path = job.root / f"begun-{job.member:02}"
    with path.open("a") as file:
        file.write(f"{os.getpid()}\n")
    return len(path.read_text().split())


def begun(job: Job) -> list[int]:
    """Return the processes that have begun a job."""
    path = job.root / f"begun-{job.member:02}"
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def die_first(job: Job) -> Outcome:
    """Be killed in the middle of the first attempt of member 1."""
    if mark(job) == 1 and job.member == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return advance(job)


def die_always(job: Job) -> Outcome:
    """Be killed in every attempt of member 1."""
    mark(job)
    if job.member == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return advance(job)


def sleep(job: Job) -> Outcome:
    mark(job)
    time.sleep(LONG)
    return advance(job)


def sleep_first(job: Job) -> Outcome:
    """Wait to be killed by somebody else, once."""
    if mark(job) == 1:
        time.sleep(LONG)
    return advance(job)


def fork_and_die(job: Job) -> Outcome:
    """Leave a child behind that holds every pipe open, once."""
    if mark(job) == 1:
        child = os.fork()
        if child == 0:
            time.sleep(LONG)
        (job.root / "child").write_text(str(child))
        os.kill(os.getpid(), signal.SIGKILL)
    return advance(job)


def refuse(job: Job) -> Outcome:
    mark(job)
    if job.member == 1:
        raise LookupError(f"member {job.member} has no bars")
    return advance(job)


class StubbornError(Exception):
    """An exception that pickle cannot make again."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


def refuse_stubbornly(job: Job) -> Outcome:
    raise StubbornError("this", f"member {job.member}")


def return_a_function(_: Job) -> object:
    return lambda: None


def speak(job: Job) -> Outcome:
    print(f"member {job.member} speaks", flush=True)  # noqa: T201
    os.system(f"echo member {job.member} has a child")  # noqa: S605
    return advance(job)


def threads(job: Job) -> Outcome:
    import torch

    return outcome(job, fitness=float(torch.get_num_threads()))


def exploiting(job: Job, source: int) -> Job:
    exploit = Exploit(source, digest="", strategy="reset", values={})
    return Job(job.member, job.round, job.root, job.target, exploit)


def is_alive(process: int) -> bool:
    """Return whether a process runs; one that is dead and not yet waited for does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def eventually(holds, *, seconds: float = 30.0) -> bool:
    """Wait until something holds, but not for ever."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if holds():
            return True
        time.sleep(0.02)
    return bool(holds())
