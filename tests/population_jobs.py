"""What the tests of engines let workers do: small jobs on the files of a population's folder.

Workers import this module by its name, so it needs nothing of pytest.
"""

import hashlib
import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

from stormsail.algorithms.population.jobs import Exploit, Job, Outcome

LONG = 120.0  # seconds that no test waits for: what sleeps so long is cut off


def jobs(root: Path, count: int, *, round_: int = 0) -> list[Job]:
    return [Job(member=m, round=round_, root=root, target=5 * (round_ + 1)) for m in range(count)]


def folder(job: Job) -> Path:
    return job.root / "members" / f"{job.member:02}"


def image(root: Path) -> dict[str, tuple[bytes | None, bool]]:
    """Return bytes and executability of everything below a folder."""
    return {
        path.relative_to(root).as_posix(): (
            path.read_bytes() if path.is_file() else None,
            os.access(path, os.X_OK),
        )
        for path in root.rglob("*")
    }


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


def node(job: Job) -> Outcome:
    """Say on which node of a cluster it was done."""
    import ray

    mark(job)
    time.sleep(0.2)  # so that nobody does two in a row while another begins
    words = ray.get_runtime_context().get_node_id()
    return Outcome(job.member, job.round, float(os.getpid()), job.target, words, {})


@dataclass(frozen=True)
class gpus:  # noqa: N801 - used as a function
    """Say which GPUs of which node it may use, once so many jobs are at work; and when it was."""

    together: int

    def __call__(self, job: Job) -> Outcome:
        import ray

        begun = time.monotonic()
        mark(job)
        eventually(lambda: len(list(job.root.glob("begun-*"))) >= self.together)
        place = ray.get_runtime_context().get_node_id()
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
        metrics = {"begun": begun, "ended": time.monotonic()}
        return Outcome(job.member, job.round, 0.0, job.target, f"{place} {seen}", {}, metrics)


@dataclass(frozen=True)
class node_or_sleep:  # noqa: N801 - used as a function
    """Say on which node it was done; on one of them, wait to be removed with it."""

    node: str

    def __call__(self, job: Job) -> Outcome:
        import ray

        if ray.get_runtime_context().get_node_id() == self.node:
            return sleep(job)
        return node(job)


def grow(job: Job) -> Outcome:
    """Change a member's folder in every way: from its own bytes, and from those of its source."""
    own = folder(job)
    source = own if job.exploit is None else parent(job, job.exploit.source)
    before = (source / "state.bin").read_bytes()
    (own / "state.bin").write_bytes(hashlib.sha256(before).digest() * 70_001 + before[-7:])
    (own / "old.txt").unlink(missing_ok=True)
    (own / "deep" / "empty").mkdir(parents=True, exist_ok=True)
    (own / "deep" / "nothing").touch()
    (own / "deep" / f"round-{job.round}").write_bytes(bytes(range(256)))
    settings = (job.root / "config.toml").read_text()
    result = outcome(job, fitness=float(len(before)), words=settings)
    known = try_once(job)
    at_home = float((job.root / "logs").exists())
    return replace(result, metrics={"at home": at_home, "trials": float(known)})


def try_once(job: Job) -> int:
    """Write a line to the trial ledger unless it is there; return how many lines there were."""
    from stormsail.evaluation.stats.trials import TrialLedger

    ledger = TrialLedger(job.root.resolve().parent / "trials.jsonl")
    trials = ledger.read().trials
    name = f"{job.root.name}/{job.member:02}"
    if name not in {trial.name for trial in trials}:
        ledger.record(
            "training",
            name,
            config_hash="c",
            data_hash="d",
            sharpe_per_bar=job.member / 8,
            bars=7,
            extra={"seed": job.member},
        )
    return len(trials)


def parent(job: Job, member: int) -> Path:
    return job.root / "parents" / f"{job.round:06d}-{member:02d}"


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
    """Be killed in every attempt of member 1 but the ninth, so that no test waits for ever."""
    if mark(job) < 9 and job.member == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return advance(job)


def die_in_training(job: Job) -> Outcome:
    """Train a real member; of member 1, be killed once, after the first update of round 1.

    By then the member has taken over another one, or not, as its population decided.
    """
    from stormsail.algorithms.population import member
    from stormsail.algorithms.trainer import Trainer

    begins = mark(job)  # the first one was in round 0
    if (job.member, job.round, begins) == (1, 1, 2):
        real = Trainer.advance

        def last(self: Trainer) -> None:
            real(self)
            os.kill(os.getpid(), signal.SIGKILL)

        Trainer.advance = last  # type: ignore[method-assign]
    return member.advance(job)


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
