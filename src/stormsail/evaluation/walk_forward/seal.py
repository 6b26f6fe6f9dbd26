"""Sealed bars: the final test spans of validations, who has opened them, and what that costs.

A validation seals its final test span with its first line in the trial ledger: symbols, and times
from start to end. Two spans are of the same bars if they have a symbol and a time in common,
whatever the number of bars, their length or the other symbols: leaving out a bar or a symbol makes
no new data. `validate --open-test` opens a span and so does a backtest that trades any part of it.
Each such backtest is a line of its own and counts as a trial. A training that begins on such bars
and a validation that has them before its own final test span open them, too, and are trials anyway.
What the ledger cannot know is a symbol under another name, and bars that were looked at in another
workspace or program, or before they were sealed.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256

from stormsail.core.clock import iso
from stormsail.core.errors import StormsailError
from stormsail.core.files import documents
from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.stats.trials import (
    FAILED,
    LOOK,
    OPENED,
    RUN_KEY,
    STARTED,
    VALIDATION,
    Trial,
    TrialLedger,
    TrialRecords,
)
from stormsail.market.splits import Span

SPAN, SYMBOLS, BY = "span", "symbols", "by"
"""Entries of `extra` in lines about sealed bars."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sealed:
    """Bars of some symbols in a span."""

    symbols: tuple[str, ...]
    """Empty where they are not known: that may be any."""
    span: Span

    def overlaps(self, other: "Sealed") -> bool:
        """Return whether a symbol and a time are in both."""
        unknown = not self.symbols or not other.symbols
        shared = unknown or bool({*self.symbols} & {*other.symbols})
        return shared and self.span.overlaps(other.span)

    def document(self) -> dict[str, JsonValue]:
        """Return the entries of `extra` that say which bars they are."""
        return {
            SPAN: [self.span.start_ms, self.span.end_ms],
            SYMBOLS: list(self.symbols),
        }

    @classmethod
    def of(cls, line: Trial) -> "Sealed | None":
        """Return the bars that a line is about; None where it does not say so."""
        return cls.read(line.extra)

    @classmethod
    def read(cls, document: Mapping[str, JsonValue]) -> "Sealed | None":
        """Return the bars that `document` wrote; None where there are none."""
        match document.get(SPAN):
            case [int(start), int(end)]:
                symbols = document.get(SYMBOLS)
                names = symbols if isinstance(symbols, list) else []
                return cls(tuple(str(symbol) for symbol in names), Span(start, end))
        return None


def sealing(records: TrialRecords, bars: Sealed) -> list[Trial]:
    """Return the first line of each validation whose final test span overlaps some bars."""
    lines = {
        line.extra.get(RUN_KEY): line
        for line in reversed(records.trials)
        if line.kind == VALIDATION and (own := Sealed.of(line)) is not None and own.overlaps(bars)
    }
    return sorted(lines.values(), key=lambda line: line.number)


def openings_of(records: TrialRecords, bars: Sealed, *, data_hash: str = "") -> list[Trial]:
    """Return the openings of some bars.

    Args:
        records: of the ledger.
        bars: the final test span.
        data_hash: of the bars before it: a line that names no span is one of theirs or of none.
    """
    return [line for line in records.openings() if _concerns(line, bars, data_hash)]


def _concerns(line: Trial, bars: Sealed, data_hash: str) -> bool:
    named = Sealed.of(line)
    return line.data_hash == data_hash if named is None else named.overlaps(bars)


def opened_words(openings: Sequence[Trial]) -> str:
    """Return who has opened a final test span, in a sentence without its end."""
    parts = [
        f"{LOOK if line.kind == LOOK else line.extra.get(BY, VALIDATION)} `{line.name}` at "
        f"{iso(line.time_ns // 1_000_000, timespec='seconds')}"
        for line in openings
    ]
    times = f"{len(parts)} time{'s' * (len(parts) != 1)}"
    shown = ", ".join(parts[:_SHOWN]) + (", ..." if len(parts) > _SHOWN else "")
    return (
        f"the final test span was opened {times} before, by {shown}: it confirms nothing any more"
    )


_SHOWN = 3  # openings that are named; the rest is counted


def open_seals(
    ledger: TrialLedger,
    name: str,
    bars: Sealed,
    *,
    key: str,
    by: str,
    config_hash: str,
    data_hash: str,
) -> None:
    """Record that something which begins now reads sealed bars, where nobody has opened them yet.

    Args:
        ledger: of the workspace.
        name: of the training or validation.
        bars: that it reads.
        key: of its own lines in the ledger.
        by: its kind, in a word.
        config_hash: of its settings.
        data_hash: of its bars.

    Raises:
        ArtifactError: if the ledger is damaged or cannot be written.
    """
    records = ledger.read()
    closed = [
        line
        for line in sealing(records, bars)
        if (own := Sealed.of(line)) is not None and not openings_of(records, own)
    ]
    if not closed:
        return
    ledger.record(
        OPENED,
        name,
        config_hash=config_hash,
        data_hash=data_hash,
        sharpe_per_bar=None,
        bars=0,
        extra={RUN_KEY: f"{key}-seal", BY: by, **bars.document()},
    )
    names = ", ".join(f"`{name}`" for name in dict.fromkeys(line.name for line in closed))
    _LOG.warning(
        "this %s reads bars that are sealed as the final test span of %s: it is recorded as their "
        "opening, and every later verdict on them says so",
        by,
        names,
    )


@dataclass
class Opening:
    """A backtest on sealed bars, while it is done."""

    sealed_by: tuple[str, ...]
    """Names of the validations whose final test span it trades a part of."""
    before: int
    """How often somebody had opened these bars."""
    sharpe_per_bar: float | None = field(default=None, init=False)
    """Of its returns, once they are known; None where they are too few or all equal."""
    bars: int = field(default=0, init=False)
    """Returns that are known."""

    @property
    def words(self) -> str:
        """What a reader must know."""
        names = ", ".join(f"`{name}`" for name in self.sealed_by)
        return (
            f"this backtest trades bars that are sealed as the final test span of {names}: it is "
            f"recorded as their opening number {self.before + 1} and counts as a trial, and every "
            "later verdict says so"
        )


@contextmanager
def recorded_look(
    ledger: TrialLedger, name: str, bars: Sealed, *, config_hash: str, data_hash: str
) -> Iterator[Opening | None]:
    """Record a backtest before it is done, if it trades sealed bars, and how it ended after it.

    A backtest that fails before its returns are known has shown nothing, and is no opening.

    Args:
        ledger: of the workspace.
        name: of what is traded.
        bars: that it trades.
        config_hash: of its settings.
        data_hash: of the whole data.

    Yields:
        None where the bars are not sealed.

    Raises:
        ArtifactError: if the ledger is damaged or cannot be written.
    """
    records = ledger.read()
    seals = sealing(records, bars)
    if not seals:
        yield None
        return
    openings = openings_of(records, bars)
    names = dict.fromkeys(line.name for line in seals)
    look = Opening(tuple(names), len(openings))
    identity = [name, config_hash, data_hash, len(records.trials)]
    key = sha256(documents.encode(identity)).hexdigest()

    def write(status: str) -> None:
        ledger.record(
            LOOK,
            name,
            config_hash=config_hash,
            data_hash=data_hash,
            sharpe_per_bar=look.sharpe_per_bar,
            bars=look.bars,
            status=status,
            extra={RUN_KEY: key, **bars.document()},
        )

    write(STARTED)
    try:
        yield look
    except Exception:
        if not look.bars:
            with suppress(StormsailError):  # the first error is the one to report
                write(FAILED)
        raise
    write("finished")
