"""What a validation reads from the trial ledger and writes into it.

A line when it begins, one when it ends; both carry a key made of name, settings, trainings and
bars, so that a validation which was killed and started again is one trial. What deflates it is
what stood there before its first line. The opening of the final test span is a line of its own,
written before anything of it is known.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256

from stormsail.core.errors import ArgumentError, ConfigError, StormsailError
from stormsail.core.files import documents
from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.stats.figures import as_series
from stormsail.evaluation.stats.trials import RUN_KEY, STARTED, Trial, TrialBook, TrialLedger
from stormsail.evaluation.walk_forward.config import ValidationConfig
from stormsail.evaluation.walk_forward.judge import Trials
from stormsail.market.bars import iso
from stormsail.market.panel import Panel
from stormsail.market.splits import Span

KIND = "validation"
OPENED = "test-opened"
_ORIGIN_ROWS = 64


@dataclass
class Book:
    """The lines of one validation; without a ledger nothing is read or written."""

    ledger: TrialLedger | None
    name: str
    key: str
    config_hash: str
    data_hash: str
    final: Span
    origin: str
    """Hash of the first bars: data that grow at their end stay the same data."""
    trials: Trials = field(default_factory=Trials)

    @classmethod
    def begun(
        cls,
        ledger: TrialLedger | None,
        name: str,
        *,
        config: ValidationConfig,
        data: Panel,
        final: Span,
        training: JsonValue,
    ) -> "Book":
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
        book = cls(ledger, name, key, config_hash, data_hash, final, first.digest())
        if config.open_test:
            book._check_unopened()
        if ledger is not None:
            lines = ledger.read()
            mine = [one.number for one in lines.of_run(key) if one.kind == KIND]
            if not mine:
                book._write(KIND, STARTED, None, 0)
                mine = [len(lines.trials) + 1]
            book.trials = _before(lines, mine[0])
        return book

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Write that the validation failed if something ends it; an interrupt writes nothing."""
        try:
            yield
        except Exception as error:
            with contextlib.suppress(StormsailError):  # the first error is the one to tell
                self._write(KIND, "failed", None, 0, reason=str(error))
            raise

    def ended(self, status: str, *, sharpe_per_bar: float | None, bars: int, verdict: str) -> None:
        """Write how the validation ended, unless just that is on record."""
        if self.ledger is None:
            return
        ends = [one for one in self.ledger.read().of_run(self.key) if one.kind == KIND]
        known = [(one.status, one.sharpe_per_bar, one.bars) for one in ends[-1:]]
        if known != [(status, sharpe_per_bar, bars)]:
            self._write(KIND, status, sharpe_per_bar, bars, verdict=verdict)

    def open(self) -> None:
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
        return [one for one in self.ledger.openings() if self._is_mine(one)]

    def _is_mine(self, opening: Trial) -> bool:
        if opening.data_hash == self.data_hash:
            return True
        span = opening.extra.get("span")
        if opening.extra.get("origin") != self.origin or not isinstance(span, list):
            return False
        start, end = (int(one) if isinstance(one, int) else 0 for one in span)
        return start < self.final.end_ms and self.final.start_ms < end

    def _check_unopened(self) -> None:
        if self.ledger is None:
            raise ArgumentError(
                "missing-argument",
                wrong="to open the final test span there must be a ledger that says so",
                found="none",
                remedy="Pass `ledger`, or leave `open_test` out.",
            )
        ends = [one for one in self.ledger.read().of_run(self.key) if one.kind == KIND]
        finished = any(one.status == "finished" for one in ends)
        for one in self._same_span():
            if one.extra.get(RUN_KEY) == self.key and not finished:
                continue  # this very validation, ended before anybody saw what it found
            raise ConfigError(
                "config-inconsistent",
                wrong="the final test span of these bars must be opened once only",
                found=f"that `{one.name}` opened it at {iso(one.time_ns // 1_000_000)}",
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


def _before(lines: TrialBook, number: int) -> Trials:
    """Return the trials whose first line stood there before."""
    earlier = TrialBook(tuple(one for one in lines.trials if one.number < number), lines.torn)
    counted = earlier.counted()
    known = [one.sharpe_per_bar for one in counted if one.sharpe_per_bar is not None]
    return Trials(len(counted) + (1 if lines.torn else 0), as_series(known, name="sharpes"))
