"""Trial ledger: every training and every validation that was ever run, in a file that only grows.

A report of the best of many trials must know how many there were. The ledger is a text file
with one JSON document a line. Each line holds the hash of the line before and its own, so that a
changed, inserted, moved or deleted line is found; a small file beside it holds the last hash, so
that missing last lines are found, too. It guards against accidents and against forgetting, not
against somebody who rewrites both files: there is no secret in it.

A writer holds a lock on the ledger, writes one line and forces it to the disk before it returns. A
line that a dying process left unfinished is reported by every reader, counted as a trial, and
closed by the next writer with a line of its own that says what was there.
"""

import contextlib
import fcntl
import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from stormsail.core.clock import Clock, SystemClock
from stormsail.core.errors import ArgumentError, ArtifactError, ChoiceError, RangeError
from stormsail.core.files import atomic, documents
from stormsail.core.files.artifact import write_error
from stormsail.core.files.documents import DocumentError, JsonValue
from stormsail.core.files.verified import read_error
from stormsail.evaluation.stats.figures import Array

VALIDATION = "validation"
OPENED = "test-opened"
"""Kind of a line that says that a validation opened its final test span."""

LOOK = "backtest"
"""Kind of a line about a backtest on bars that a validation has sealed; no other is recorded. It
opens them, and each one is a trial: a result that somebody has seen."""

KINDS = ("training", VALIDATION, LOOK, OPENED)
STARTED = "started"
"""Status of a line that says that something has begun; another one tells how it ended."""

EXTENDED = "extended"
"""Status of a line that says that a training goes on with a larger budget."""

FAILED = "failed"
"""Status of what was refused or failed: without a result it was no trial."""

STATUSES = (STARTED, "finished", FAILED, "stopped", EXTENDED)
TRIED = ("training", VALIDATION, LOOK)
"""The kinds that count as trials; a line that was never finished counts as well."""

RUN_KEY = "run_key"
"""Entry of `extra` that lines about the same trial share: they count once."""

LOOKS = "looks"
"""Entry of `extra`: how often the trial was extended after its result was known. Each such
extension is a decision on that result, so the results before and after it count as two."""

REPAIR = "repair"
"""Kind of the line that the ledger itself writes over one that was never finished."""

HEAD = ".head"
"""What the name of the file with the last hash ends with."""

FIRST = "0" * 64
"""What stands for the hash before the first line."""

_LIMIT = 1 << 30
_KEYS = {
    *("previous", "number", "time_ns", "kind", "name", "config_hash", "data_hash"),
    *("sharpe_per_bar", "bars", "status", "extra", "hash"),
}


@dataclass(frozen=True)
class Trial:
    """One line of the ledger.

    Attributes:
        number: its place, from 1.
        time_ns: when it was written, nanoseconds since 1970 UTC.
        kind: one of `KINDS`, or `repair`.
        name: the run or the rule.
        config_hash: of the resolved configuration.
        data_hash: of the bars.
        sharpe_per_bar: of its own returns, not annualised; None where there is none.
        bars: how many returns that comes from.
        status: one of `STATUSES`.
        extra: anything else, as JSON.
        hash: SHA-256 over everything above and the hash of the line before.
    """

    number: int
    time_ns: int
    kind: str
    name: str
    config_hash: str
    data_hash: str
    sharpe_per_bar: float | None
    bars: int
    status: str
    extra: Mapping[str, JsonValue] = field(default_factory=dict)
    hash: str = ""

    @property
    def tells_result(self) -> bool:
        """Whether somebody has seen a result of it: it ended, or failed with a Sharpe ratio."""
        ended = self.status not in (STARTED, EXTENDED, FAILED)
        return ended or self.sharpe_per_bar is not None


@dataclass(frozen=True)
class TrialRecords:
    """The lines that a ledger held when it was read.

    Attributes:
        trials: its lines, in order.
        torn: bytes of a last line that was never finished; 0 is the usual.
    """

    trials: tuple[Trial, ...]
    torn: int

    def counted(
        self, *, kinds: tuple[str, ...] = TRIED, data_hash: str | None = None
    ) -> tuple[Trial, ...]:
        """Return the lines that count as trials, on the given data if any is named.

        Of several lines with one kind, one `RUN_KEY` and as many `LOOKS` the last that tells an end
        stands for all, or the last one where none does: what began and never ended was a trial as
        well. What failed without a result was none, unless it began again; a failure after a result
        takes nothing back. A repaired line counts always: nobody knows what it was.
        """
        return tuple(
            trial
            for trial in _merged(self.trials)
            if trial.kind == REPAIR
            or (
                trial.kind in kinds
                and data_hash in (None, trial.data_hash)
                and (trial.status != FAILED or trial.sharpe_per_bar is not None)
            )
        )

    def openings(self, *, data_hash: str | None = None) -> tuple[Trial, ...]:
        """Return when sealed bars were opened, by a validation or by a backtest."""
        counted = self.counted(kinds=(OPENED, LOOK), data_hash=data_hash)
        return tuple(trial for trial in counted if trial.kind != REPAIR)

    @property
    def head(self) -> str:
        """Hash of the last line."""
        return self.trials[-1].hash if self.trials else FIRST

    def of_run(self, key: str) -> tuple[Trial, ...]:
        """Return the lines about one trial, in order."""
        return tuple(trial for trial in self.trials if trial.extra.get(RUN_KEY) == key)


def scores_of(trials: Iterable[Trial]) -> Array:
    r"""Return :math:`SR \sqrt T` of the validations among some trials that have a Sharpe ratio.

    Trials over other numbers of bars have Sharpe ratios of other precision; times the root of the
    bars all without skill are draws of one distribution. A training's ratio is none of them: it is
    the best of many evaluations on the bars that chose it. It counts as a trial, without a ratio.
    """
    known = [
        trial.sharpe_per_bar * math.sqrt(trial.bars)
        for trial in trials
        if trial.kind == VALIDATION and trial.sharpe_per_bar is not None
    ]
    return np.array(known, dtype=np.float64)


class TrialLedger:
    """An append-only, hash-chained list of everything that was tried.

    Args:
        path: of the file; it and its folder are made by the first record.
        clock: where the time of a record comes from.
    """

    def __init__(self, path: Path | str, *, clock: Clock | None = None) -> None:
        self.path = Path(path)
        self._clock = clock or SystemClock()

    def record(
        self,
        kind: str,
        name: str,
        *,
        config_hash: str,
        data_hash: str,
        sharpe_per_bar: float | None,
        bars: int,
        status: str = "finished",
        extra: Mapping[str, JsonValue] | None = None,
    ) -> Trial:
        """Append one line; when this returns, it is on the disk.

        Writers in other processes wait for one another.

        Raises:
            ChoiceError: if kind or status is none of those on offer.
            RangeError: if the Sharpe ratio is not finite or `bars` is negative.
            ArgumentError: if `extra` holds what JSON cannot.
            ArtifactError: if the ledger is damaged, or the disk refuses. A trial that is recorded
                again after that counts twice at worst, which errs on the safe side.
        """
        _check_choice("kind", kind, KINDS)
        _check_choice("status", status, STATUSES)
        _check_numbers(sharpe_per_bar, bars)
        body: dict[str, JsonValue] = {
            "kind": kind,
            "name": name,
            "config_hash": config_hash,
            "data_hash": data_hash,
            "sharpe_per_bar": None if sharpe_per_bar is None else float(sharpe_per_bar),
            "bars": bars,
            "status": status,
            "extra": _plain(extra or {}),
        }
        with _system_errors(self.path):
            atomic.make_folders(self.path.parent)
            with _locked(self.path) as descriptor:
                return self._append(descriptor, body)

    def read(self) -> TrialRecords:
        """Return every line, having checked the whole chain; empty where there is no ledger yet.

        Raises:
            ArtifactError: if a line is not the one that was written, or last lines are missing.
        """
        try:
            with atomic.open_folder(self.path.parent, follow=True) as folder:
                # The head first: what it names is on the disk by then, whoever writes meanwhile.
                head = _read(folder, self.path.name + HEAD)
                text = _read(folder, self.path.name)
        except FileNotFoundError:
            return TrialRecords((), 0)
        except OSError as error:
            raise read_error(self.path.parent, self.path.name, error) from error
        return _verify(self.path, text, head)

    def count(self, *, kinds: tuple[str, ...] = TRIED, data_hash: str | None = None) -> int:
        """Return how many trials there were, unfinished ones included."""
        records = self.read()
        return len(records.counted(kinds=kinds, data_hash=data_hash)) + (1 if records.torn else 0)

    def sharpes(self, *, kinds: tuple[str, ...] = TRIED, data_hash: str | None = None) -> Array:
        """Return the per-bar Sharpe ratios of the trials that have one."""
        counted = self.read().counted(kinds=kinds, data_hash=data_hash)
        known = [trial.sharpe_per_bar for trial in counted if trial.sharpe_per_bar is not None]
        return np.array(known, dtype=np.float64)

    def scores(self, *, data_hash: str | None = None) -> Array:
        """Return the scores (`scores_of`) of the validations, on the given data if any is named."""
        return scores_of(self.read().counted(data_hash=data_hash))

    def openings(self, *, data_hash: str | None = None) -> tuple[Trial, ...]:
        """Return when sealed bars were opened; more than once is a warning to the reader."""
        return self.read().openings(data_hash=data_hash)

    def _append(self, descriptor: int, body: dict[str, JsonValue]) -> Trial:
        """Write one line behind the last complete one; the caller holds the lock."""
        records = self.read()
        last = records.trials[-1] if records.trials else None
        lines = b""
        if records.torn:
            lines, last = self._line(_repair(self.path, records.torn), last)
        line, trial = self._line(body, last)
        _write(descriptor, lines + line, over=records.torn)
        with atomic.open_folder(self.path.parent, follow=True) as folder:
            os.fsync(folder)
            atomic.replace_file(folder, self.path.name + HEAD, trial.hash.encode() + b"\n")
        return trial

    def _line(self, body: Mapping[str, JsonValue], last: Trial | None) -> tuple[bytes, Trial]:
        document: dict[str, JsonValue] = {
            **body,
            "previous": FIRST if last is None else last.hash,
            "number": 1 if last is None else last.number + 1,
            "time_ns": self._clock.now_ns(),
        }
        document["hash"] = _digest(document)
        return documents.encode(document) + b"\n", _trial(document)


def _merged(trials: tuple[Trial, ...]) -> list[Trial]:
    """Return one line for each trial, in the order of the lines that are left."""
    chosen: dict[object, Trial] = {}
    for trial in trials:
        key = trial.extra.get(RUN_KEY)
        looks = trial.extra.get(LOOKS, 0)
        place = (trial.kind, key, looks) if isinstance(key, str) else trial.number
        before = chosen.get(place)
        if before is None or not before.tells_result or trial.tells_result:
            chosen[place] = trial
    return sorted(chosen.values(), key=lambda trial: trial.number)


def _verify(path: Path, text: bytes | None, head: bytes | None) -> TrialRecords:
    if text is None:
        if head is not None:
            raise _damage(path, 1, "no ledger, although its last hash is known")
        return TrialRecords((), 0)
    *lines, tail = text.split(b"\n")
    trials: list[Trial] = []
    for number, line in enumerate(lines, start=1):
        previous = trials[-1].hash if trials else FIRST
        trials.append(_checked(path, number, line, previous))
    known = None if head is None else head.strip().decode("ascii", errors="replace")
    if known is not None and known not in {trial.hash for trial in trials}:
        raise _damage(path, len(trials) + 1, "the end, although a later line was written")
    return TrialRecords(tuple(trials), len(tail))


def _checked(path: Path, number: int, line: bytes, previous: str) -> Trial:
    """Return one line, or say what is wrong with it."""
    try:
        document = documents.decode(line)
    except DocumentError as error:
        raise _damage(path, number, f"text that is not JSON: {error}") from error
    if not isinstance(document, dict) or set(document) != _KEYS:
        raise _damage(path, number, "a document with other keys")
    own = document.pop("hash")
    if own != _digest(document):
        raise _damage(path, number, "contents with another hash than the line's own")
    if document["previous"] != previous or document["number"] != number:
        raise _damage(path, number, "a line that does not follow the one before")
    return _trial({**document, "hash": own})


def _trial(document: Mapping[str, JsonValue]) -> Trial:
    values = {name: value for name, value in document.items() if name != "previous"}
    return Trial(**values)  # type: ignore[arg-type]  # the hash vouches for what record() wrote


def _digest(document: Mapping[str, JsonValue]) -> str:
    return hashlib.sha256(documents.encode(dict(document))).hexdigest()


def _repair(path: Path, torn: int) -> dict[str, JsonValue]:
    """Return the line that stands for one which was never finished, with what is left of it."""
    tail = path.read_bytes()[-torn:]
    return {
        "kind": REPAIR,
        "name": "unfinished line",
        "config_hash": "",
        "data_hash": "",
        "sharpe_per_bar": None,
        "bars": 0,
        "status": "failed",
        "extra": {
            "bytes": torn,
            "sha256": hashlib.sha256(tail).hexdigest(),
            "begins": tail[:200].decode("ascii", errors="replace"),
        },
    }


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Open the ledger to write, alone; others wait, and the kernel frees it if we die."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _write(descriptor: int, data: bytes, *, over: int) -> None:
    """Write at the end, over as many unfinished bytes as are there, and force it to the disk.

    Unfinished bytes are written over, never cut off first: whenever this dies, either they or an
    unfinished repair still stand at the end, and the trial they mean is not forgotten.
    """
    size = os.fstat(descriptor).st_size
    at = start = size - over
    try:
        rest = memoryview(data)
        while rest:
            written = os.pwrite(descriptor, rest, at)
            at, rest = at + written, rest[written:]
        if at < size:
            os.ftruncate(descriptor, at)
        os.fsync(descriptor)
    except BaseException:  # a full disk or an interrupt: leave no half line if that is possible
        if not over:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, start)
        raise


def _read(folder: int, name: str) -> bytes | None:
    try:
        return atomic.read_file(folder, name, limit=_LIMIT)
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def _system_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise write_error(path, error) from error


def _plain(extra: Mapping[str, JsonValue]) -> JsonValue:
    try:
        return documents.plain(dict(extra))
    except DocumentError as error:
        raise ArgumentError(
            "out-of-range",
            wrong="`extra` must hold only what JSON can give back",
            found=str(error),
            remedy="Pass numbers, strings, lists and mappings of them.",
        ) from error


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ChoiceError(
            wrong=f"`{name}` must be one of {', '.join(choices)}",
            found=repr(value),
            remedy="Name what was run.",
        )


def _check_numbers(sharpe_per_bar: float | None, bars: int) -> None:
    finite = sharpe_per_bar is None or np.isfinite(sharpe_per_bar)
    if bars < 0 or not finite:
        raise RangeError(
            wrong="a trial must have a finite Sharpe ratio or None, and at least 0 bars",
            found=f"{sharpe_per_bar} and {bars}",
            remedy="Pass None where there is no Sharpe ratio; the trial counts all the same.",
        )


def _damage(path: Path, line: int, found: str) -> ArtifactError:
    return ArtifactError(
        "artifact-corrupt",
        wrong=f"line {line} of the trial ledger {path} must be as it was written",
        found=found,
        remedy="Restore the ledger from a copy; without it the number of trials is unknown.",
    )
