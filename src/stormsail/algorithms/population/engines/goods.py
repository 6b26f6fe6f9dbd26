"""What a job reads and makes, for a worker that does not see the driver's disk.

A job is a function of files below the folder of its population and of the trial ledger beside it.
Here stands which files these are: they are sent along, and what the job has changed comes home.
"""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from stormsail.algorithms.population.engines.reports import carry_out
from stormsail.algorithms.population.engines.transport import (
    install,
    pack_folders,
    restore,
    unpack_folders,
)
from stormsail.algorithms.population.jobs import Job
from stormsail.algorithms.population.member import member_folder, parent_folder
from stormsail.algorithms.run.trials import LEDGER
from stormsail.core.clock import NANOSECONDS, SystemClock
from stormsail.core.files.atomic import FolderBusyError, locked_folder
from stormsail.evaluation.stats.trials import HEAD, Trial, TrialLedger

_SCRATCH = "stormsail-member-"
_LEFT_FOR = 600  # seconds; a folder that is not locked may have been made just now


@dataclass(frozen=True)
class Goods:
    """What comes home with an outcome.

    Attributes:
        folder: of the member, packed.
        trials: its new lines of the trial ledger.
    """

    folder: bytes
    trials: tuple[Trial, ...]


def read_by(job: Job) -> list[tuple[str, ...]]:
    """Return what a job reads, in parts that several jobs may share.

    Names are relative to the folder that holds the population's.
    """
    root = job.root.resolve()
    restore(root)
    files = sorted(f"{root.name}/{path.name}" for path in root.iterdir() if path.is_file())
    parts = [(*files, LEDGER, LEDGER + HEAD), (f"{root.name}/{_folder(job.member)}",)]
    if job.exploit is not None:
        parent = parent_folder(root, job.round, job.exploit.source)
        parts.append((parent.relative_to(root.parent).as_posix(),))
    return parts


def work_elsewhere(
    work: bytes, population: str, member: int, folders: Sequence[bytes]
) -> tuple[bytes, Goods]:
    """Carry out a job in a temporary folder; return its report and what must travel.

    Args:
        work: the job.
        population: name of its folder.
        member: that the job is of.
        folders: what it reads.
    """
    with _scratch() as place:
        for folder in folders:
            unpack_folders(folder, place)
        ledger = TrialLedger(place / LEDGER)
        before = len(ledger.read().trials)
        report = carry_out(work, root=place / population)
        made = pack_folders(place / population, [_folder(member)])
        return report, Goods(made, ledger.read().trials[before:])


def bring_home(goods: Goods, job: Job) -> None:
    """Put into the population what a job has made elsewhere.

    Lines come first: if the driver is killed in between, the job is done again, sees them and
    writes them no second time.
    """
    root = job.root.resolve()
    ledger = TrialLedger(root.parent / LEDGER)
    for trial in goods.trials:
        ledger.record(
            trial.kind,
            trial.name,
            config_hash=trial.config_hash,
            data_hash=trial.data_hash,
            sharpe_per_bar=trial.sharpe_per_bar,
            bars=trial.bars,
            status=trial.status,
            extra=trial.extra,
        )
    install(goods.folder, root, _folder(job.member))


def _folder(member: int) -> str:
    """Return the name of a member's folder below that of its population."""
    return member_folder(Path(), member).as_posix()


@contextmanager
def _scratch() -> Iterator[Path]:
    """Make a folder for one job, and remove those of jobs that were killed on this node."""
    for left in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*"):
        with suppress(FolderBusyError, OSError):  # somebody works there, or it is not ours
            if SystemClock().now_ns() - left.stat().st_mtime_ns > _LEFT_FOR * NANOSECONDS:
                with locked_folder(left):
                    shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH) as scratch, locked_folder(Path(scratch)):
        yield Path(scratch)
