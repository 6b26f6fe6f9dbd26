"""Lines of a validation in the trial ledger: start, opening of the final test span, end.

A line when it begins, one when it ends; both carry a key made of name, settings, trainings and
bars, so that a validation which was killed and started again is one trial. What deflates it is
what stood there before its first line. The opening of the final test span is a line of its own,
written before anything of it is known.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np

from stormsail.core.clock import iso
from stormsail.core.errors import ArgumentError, ConfigError, StormsailError
from stormsail.core.files import documents
from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.stats.figures import Array, as_series
from stormsail.evaluation.stats.trials import RUN_KEY, STARTED, Trial, TrialLedger, TrialRecords
from stormsail.evaluation.walk_forward.config import ValidationConfig
from stormsail.market.panel import Panel
from stormsail.market.splits import Span

KIND = "validation"
OPENED = "test-opened"
_ORIGIN_ROWS = 64


@dataclass(frozen=True, eq=False)
class EarlierTrials:
    """The trials of the workspace before this validation began."""

    count: int = 0
    sharpes: Array = field(default_factory=lambda: np.zeros(0))
    """Per-bar Sharpe ratios of those that have one."""


@dataclass
class ValidationTrial:
    """One validation as a trial of the ledger; without a ledger nothing is read or written."""

    ledger: TrialLedger | None
    name: str
    key: str
    config_hash: str
    data_hash: str
    final: Span
    origin: str
    """Hash of the first bars: data that grow at their end stay the same data."""
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
            ArtifactError: if the ledger is damaged or cannot be written.
        """
        first = data.between(int(data.ts[0]), int(data.ts[min(_ORIGIN_ROWS, len(data.ts) - 1)]))
        config_hash, data_hash = config.config_hash(), data.digest()
        identity = [name, config_hash, data_hash, sha256(documents.encode(training)).hexdigest()]
        key = sha256(documents.encode(identity)).hexdigest()
        trial = cls(ledger, name, key, config_hash, data_hash, final, first.digest())
        if config.open_test:
            trial._check_unopened()
        if ledger is not None:
            records = ledger.read()
            own = [line.number for line in records.of_run(key) if line.kind == KIND]
            if not own:
                trial._write(KIND, STARTED, None, 0)
                own = [len(records.trials) + 1]
            trial.earlier = _before(records, own[0])
        return trial

    @contextlib.contextmanager
    def record_failure(self) -> Iterator[None]:
        """Write that the validation failed if something ends it; an interrupt writes nothing."""
        try:
            yield
        except Exception as error:
            with contextlib.suppress(StormsailError):  # the first error is the one to report
                self._write(KIND, "failed", None, 0, reason=str(error))
            raise

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
        if not self._same_span():
            span: list[JsonValue] = [self.final.start_ms, self.final.end_ms]
            self._write(OPENED, "finished", None, 0, span=span, origin=self.origin)

    def openings(self) -> int:
        """Return how often a test span that overlaps this one has been opened."""
        return len(self._same_span())

    def _same_span(self) -> list[Trial]:
        """Return the openings of these bars: the same development data, or the same origin."""
        if self.ledger is None:
            return []
        return [opening for opening in self.ledger.openings() if self._overlaps(opening)]

    def _lines(self, ledger: TrialLedger) -> list[Trial]:
        """Return the lines about this validation itself."""
        return [line for line in ledger.read().of_run(self.key) if line.kind == KIND]

    def _overlaps(self, opening: Trial) -> bool:
        if opening.data_hash == self.data_hash:
            return True
        span = opening.extra.get("span")
        if opening.extra.get("origin") != self.origin or not isinstance(span, list):
            return False
        start, end = (time if isinstance(time, int) else 0 for time in span)
        return start < self.final.end_ms and self.final.start_ms < end

    def _check_unopened(self) -> None:
        if self.ledger is None:
            raise ArgumentError(
                "missing-argument",
                wrong="to open the final test span there must be a ledger that says so",
                found="none",
                remedy="Pass `ledger`, or leave `open_test` out.",
            )
        finished = any(line.status == "finished" for line in self._lines(self.ledger))
        for opening in self._same_span():
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


def _before(records: TrialRecords, number: int) -> EarlierTrials:
    """Return the trials whose first line stood there before."""
    lines = tuple(line for line in records.trials if line.number < number)
    counted = TrialRecords(lines, records.torn).counted()
    known = [trial.sharpe_per_bar for trial in counted if trial.sharpe_per_bar is not None]
    count = len(counted) + (1 if records.torn else 0)
    return EarlierTrials(count, as_series(known, name="sharpes"))
