"""Reports of data checks: findings with their places, as text and as JSON."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stormsail.core.clock import iso
from stormsail.market.checks.defects import BY_NAME, Defect, Severity

PLACES = 5
"""How many places of a finding are shown; its count is exact."""

_SHOWN = 60  # characters of a value: an importer's error must stay a line


@dataclass(frozen=True)
class Place:
    """Where a defect was seen.

    Args:
        row: position among the rows, the first being 0; -1 for the file as a whole.
        time: open time of the row as ISO 8601, where it has one.
        value: what stands there.
    """

    row: int
    time: str | None
    value: str

    def __str__(self) -> str:
        words = [] if self.row < 0 else [f"row {self.row}"]
        words += [] if self.time is None else [self.time]
        return " ".join([*words, self.value]).strip()


@dataclass(frozen=True)
class Finding:
    """All places of one defect class."""

    defect: Defect
    severity: Severity
    count: int
    places: tuple[Place, ...]
    detail: str = ""

    @property
    def number(self) -> str:
        """The number of the class, `D01` and so on."""
        return self.defect.number

    @property
    def name(self) -> str:
        """The name of the class."""
        return self.defect.name

    @property
    def remedy(self) -> str:
        """What to do, in words."""
        return self.defect.remedy

    @property
    def rule(self) -> str | None:
        """The `--repair` rule, if there is one."""
        return self.defect.rule

    def __str__(self) -> str:
        where = "; ".join(str(place) for place in self.places)
        more = " ..." if self.count > len(self.places) > 0 else ""
        detail = f" ({self.detail})" if self.detail else ""
        rule = f" --repair {self.rule}" if self.rule else ""
        return (
            f"{self.number} {self.name}, {self.severity}, {self.count}x{detail}: {where}{more}. "
            f"{self.remedy}{rule}"
        )

    def as_dict(self) -> dict[str, object]:
        """Return the finding as plain values."""
        return {
            "number": self.number,
            "name": self.name,
            "severity": self.severity,
            "count": self.count,
            "detail": self.detail,
            "places": [
                {"row": place.row, "time": place.time, "value": place.value}
                for place in self.places
            ],
            "remedy": self.remedy,
            "rule": self.rule,
        }


@dataclass(frozen=True)
class Report:
    """Everything found in one table or file, ordered by number.

    Args:
        what: the file or table, in words.
        rows: how many rows could be read.
        findings: one per class of defect and severity that was seen.
        symbol: whose data they are, as far as known.
        interval: length of the bars as text, empty for funding rates.
        now_ms: the present that was assumed, None if none was.
    """

    what: str
    rows: int
    findings: tuple[Finding, ...] = ()
    symbol: str = ""
    interval: str = ""
    now_ms: int | None = None

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings that refuse the data."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """Findings that are only stated."""
        return tuple(finding for finding in self.findings if finding.severity == "warning")

    @property
    def ok(self) -> bool:
        """Whether the data may be used."""
        return not self.errors

    @property
    def numbers(self) -> tuple[str, ...]:
        """Numbers of the classes that were seen."""
        return tuple(finding.number for finding in self.findings)

    def has(self, name: str) -> bool:
        """Return whether a class was seen, by its name."""
        return any(finding.name == name for finding in self.findings)

    def summary(self) -> str:
        """Return the report as lines of text, the first being a verdict."""
        verdict = "refused" if self.errors else "good"
        head = (
            f"{self.what}: {verdict}, {self.rows} rows, {len(self.errors)} errors, "
            f"{len(self.warnings)} warnings"
        )
        return "\n".join([head, *(f"  {finding}" for finding in self.findings)])

    def as_dict(self) -> dict[str, object]:
        """Return the report as plain values."""
        return {
            "what": self.what,
            "symbol": self.symbol,
            "interval": self.interval,
            "rows": self.rows,
            "ok": self.ok,
            "errors": len(self.errors),
            "warnings": len(self.warnings),
            "findings": [finding.as_dict() for finding in self.findings],
        }

    def to_json(self) -> str:
        """Return the report as JSON text."""
        return json.dumps(self.as_dict(), indent=2, ensure_ascii=False)


Value = Callable[[int], object]
"""Text about a row of a finding."""


def _nothing(_row: int) -> str:
    return ""


@dataclass
class Collector:
    """Gathers findings while the checks run.

    Args:
        ts: open time of every row in milliseconds.
        has_time: which rows have one.
    """

    ts: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    has_time: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    findings: list[Finding] = field(default_factory=list)

    def add(
        self,
        name: str,
        rows: NDArray[np.int64],
        value: Value = _nothing,
        *,
        detail: str = "",
        severity: Severity | None = None,
    ) -> None:
        """Add the rows of a defect; no rows, no finding."""
        if len(rows) == 0:
            return
        defect = BY_NAME[name]
        places = tuple(self._place(int(row), value) for row in rows[:PLACES])
        self.findings.append(
            Finding(defect, severity or defect.severity, len(rows), places, detail)
        )

    def mark(
        self, name: str, mask: NDArray[np.bool_], value: Value = _nothing, *, detail: str = ""
    ) -> None:
        """Add the rows where a mask is true."""
        if mask.any():
            self.add(name, np.flatnonzero(mask), value, detail=detail)

    def whole(self, name: str, value: str, *, severity: Severity | None = None) -> None:
        """Add a defect of the file as a whole."""
        defect = BY_NAME[name]
        place = Place(-1, None, _short(value))
        self.findings.append(Finding(defect, severity or defect.severity, 1, (place,)))

    def report(self, what: str, rows: int, **facts: Any) -> Report:  # noqa: ANN401 - passed on
        """Return everything that was gathered."""
        groups: dict[tuple[str, Severity], list[Finding]] = {}
        for finding in self.findings:
            key = finding.number, finding.severity
            groups.setdefault(key, []).append(finding)
        merged = tuple(_merged(groups[key]) for key in sorted(groups))
        return Report(what, rows, merged, **facts)

    def _place(self, row: int, value: Value) -> Place:
        timed = row < len(self.ts) and bool(self.has_time[row])
        return Place(row, iso(int(self.ts[row])) if timed else None, _short(str(value(row))))


def _merged(findings: list[Finding]) -> Finding:
    """Return the findings of one class as one: several columns or several blocks."""
    first = findings[0]
    if len(findings) == 1:
        return first
    places = sorted(
        (place for finding in findings for place in finding.places), key=lambda p: p.row
    )
    details = dict.fromkeys(finding.detail for finding in findings if finding.detail)
    count = sum(finding.count for finding in findings)
    return Finding(
        first.defect, first.severity, count, tuple(places[:PLACES]), "; ".join([*details][:PLACES])
    )


def _short(text: str) -> str:
    plain = "".join(char if char.isprintable() else "?" for char in text[: _SHOWN + 1])
    return plain if len(plain) <= _SHOWN else plain[:_SHOWN] + "..."
