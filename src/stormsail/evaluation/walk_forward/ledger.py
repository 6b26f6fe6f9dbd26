"""Lines of a validation in the trial ledger: start, opening of the final test span, end.

A line when it begins, one when it ends; both carry a key made of name, settings, trainings and
bars, so that a validation which was killed and started again is one trial. What deflates it is
what stood there before its first line. The opening of the final test span is a line of its own,
written before anything of it is known. Which bars are sealed and opened is the matter of `seal`.
"""

import contextlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stormsail.core.clock import iso
from stormsail.core.errors import ArgumentError, ConfigError, StormsailError
from stormsail.core.files import documents
from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.stats.figures import Array, as_series
from stormsail.evaluation.stats.trial_marks import check_marks
from stormsail.evaluation.stats.trials import (
    FAILED,
    OPENED,
    RUN_KEY,
    STARTED,
    Trial,
    TrialLedger,
    TrialRecords,
    scores_of,
)
from stormsail.evaluation.walk_forward.config import ValidationConfig
from stormsail.evaluation.walk_forward.seal import Sealed, open_seals, openings_of
from stormsail.evaluation.walk_forward.tried import FOLDER as RETURNS
from stormsail.evaluation.walk_forward.tried import keep_returns
from stormsail.market.panel import Panel
from stormsail.market.splits import Span

KIND = "validation"


@dataclass(frozen=True, eq=False)
class EarlierTrials:
    """The trials of the workspace before this validation began."""

    count: int = 0
    scores: Array = field(default_factory=lambda: np.zeros(0))
    """Of the validations among them: Sharpe ratio of a bar times the root of their number."""
    keys: tuple[str, ...] = ()
    """Of the validations among them that finished."""
    folder: Path | None = None
    """Where their returns are kept (`tried`); None without a ledger."""

    def sharpes(self, bars: int) -> Array:
        """Return the scores as per-bar Sharpe ratios over so many bars."""
        return np.asarray(self.scores / math.sqrt(max(bars, 1)))


@dataclass
class ValidationTrial:
    """One validation as a trial of the ledger; without a ledger nothing is read or written."""

    ledger: TrialLedger | None
    name: str
    key: str
    config_hash: str
    data_hash: str
    sealed: Sealed
    """The final test span."""
    earlier: EarlierTrials = field(default_factory=EarlierTrials)

    @classmethod
    def start(
        cls,
        ledger: TrialLedger | None,
        name: str,
        *,
        config: ValidationConfig,
        data: Panel,
        final: Span,
        training: JsonValue,
    ) -> "ValidationTrial":
        """Write that a validation begins, after refusing one that must not.

        Raises:
            ArgumentError: if the final test span is to be opened and there is no ledger.
            ConfigError: if it has been opened before.
            ArtifactError: if the ledger is damaged, lacks trials or cannot be written.
        """
        config_hash, data_hash = config.config_hash(), data.digest()
        identity = [name, config_hash, data_hash, sha256(documents.encode(training)).hexdigest()]
        key = sha256(documents.encode(identity)).hexdigest()
        trial = cls(ledger, name, key, config_hash, data_hash, Sealed(data.symbols, final))
        if config.open_test:
            trial._check_unopened()
        if ledger is not None:
            records = ledger.read()
            check_marks(ledger, records)
            own = _since_failure(line for line in records.of_run(key) if line.kind == KIND)
            if not own:
                trial._write(KIND, STARTED, None, 0, **trial.sealed.document())
                own = [len(records.trials) + 1]
                ts, bar = data.ts.cpu().numpy(), data.interval.milliseconds
                seen = Sealed(data.symbols, Span(int(ts[0]), int(ts[-1]) + bar))
                hashes = {"config_hash": config_hash, "data_hash": data_hash}
                open_seals(ledger, name, seen, key=key, by=KIND, **hashes)
            folder = ledger.path.parent / RETURNS
            trial.earlier = replace(earlier_trials(records, before=own[0]), folder=folder)
        return trial

    @contextlib.contextmanager
    def record_failure(self) -> Iterator[None]:
        """Write that the validation failed if something ends it; an interrupt writes nothing."""
        try:
            yield
        except Exception as error:
            with contextlib.suppress(StormsailError):  # the first error is the one to report
                self._write(KIND, FAILED, None, 0, reason=str(error))
            raise

    def keep_returns(self, ts: NDArray[np.int64], returns: Array) -> None:
        """Leave the returns of its account for the validations that follow.

        Raises:
            ArtifactError: if the disk refuses.
        """
        if self.earlier.folder is not None:
            keep_returns(self.earlier.folder, self.key, ts, returns)

    def finish(self, status: str, *, sharpe_per_bar: float | None, bars: int, verdict: str) -> None:
        """Write how the validation ended, unless just that is on record."""
        if self.ledger is None:
            return
        lines = self._lines(self.ledger)
        known = [(line.status, line.sharpe_per_bar, line.bars) for line in lines[-1:]]
        if known != [(status, sharpe_per_bar, bars)]:
            self._write(KIND, status, sharpe_per_bar, bars, verdict=verdict)

    def record_opening(self) -> None:
        """Write that the final test span is opened, unless this validation was killed after it."""
        if not self.openings():
            self._write(OPENED, "finished", None, 0, **self.sealed.document())

    def openings(self) -> list[Trial]:
        """Return when a test span that overlaps this one has been opened, by whomever."""
        if self.ledger is None:
            return []
        return openings_of(self.ledger.read(), self.sealed, data_hash=self.data_hash)

    def openings_by_others(self) -> list[Trial]:
        """Return the openings that are not this validation's own."""
        return [line for line in self.openings() if line.extra.get(RUN_KEY) != self.key]

    def _lines(self, ledger: TrialLedger) -> list[Trial]:
        """Return the lines about this validation itself."""
        return [line for line in ledger.read().of_run(self.key) if line.kind == KIND]

    def _check_unopened(self) -> None:
        if self.ledger is None:
            raise ArgumentError(
                "missing-argument",
                wrong="to open the final test span there must be a ledger that says so",
                found="none",
                remedy="Pass `ledger`, or leave `open_test` out.",
            )
        finished = any(line.status == "finished" for line in self._lines(self.ledger))
        for opening in self.openings():
            if opening.extra.get(RUN_KEY) == self.key and not finished:
                continue  # this very validation, ended before its result was seen
            opened = iso(opening.time_ns // 1_000_000, timespec="seconds")
            raise ConfigError(
                "config-inconsistent",
                wrong="the final test span of these bars must be opened once only",
                found=f"that `{opening.name}` opened it at {opened}",
                remedy="Believe that result, or wait for bars that nobody has seen.",
            )

    def _write(
        self, kind: str, status: str, sharpe_per_bar: float | None, bars: int, **more: JsonValue
    ) -> None:
        if self.ledger is None:
            return
        self.ledger.record(
            kind,
            self.name,
            config_hash=self.config_hash,
            data_hash=self.data_hash,
            sharpe_per_bar=sharpe_per_bar,
            bars=bars,
            status=status,
            extra={RUN_KEY: self.key, **more},
        )


def _since_failure(lines: Iterable[Trial]) -> list[int]:
    """Return the numbers of the lines after the last failure before which there was no result."""
    numbers: list[int] = []
    known = False
    for line in lines:
        known = known or line.tells_result
        numbers = [] if line.status == FAILED and not known else [*numbers, line.number]
    return numbers


def earlier_trials(records: TrialRecords, *, before: int | None = None) -> EarlierTrials:
    """Return the trials of a ledger; with `before` those whose first line stood before it."""
    lines = tuple(line for line in records.trials if before is None or line.number < before)
    counted = TrialRecords(lines, records.torn).counted()
    count = len(counted) + (1 if records.torn else 0)
    done = [line for line in counted if line.kind == KIND and line.status == "finished"]
    keys = tuple(key for line in done if isinstance(key := line.extra.get(RUN_KEY), str))
    return EarlierTrials(count, as_series(scores_of(counted), name="scores"), keys)
