"""Rows of a comparison's tables: figures, settings, hashes and rules, one cell for each entry."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from stormsail.core.config import toml
from stormsail.core.files import documents
from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.compare.sources import Entry
from stormsail.evaluation.report.words import FIGURES as METRICS
from stormsail.evaluation.report.words import cell
from stormsail.evaluation.stats.statement import Statement
from stormsail.evaluation.walk_forward.verdict import Reason

Better = Literal["more", "neither"]


class Shown(NamedTuple):
    """How a figure is written, and whether more of it is better."""

    title: str
    form: str
    better: Better = "neither"


_MORE = frozenset(
    {
        "total_return", "annual_return", "sharpe", "sortino", "calmar", "max_drawdown",
        "value_at_risk", "cvar", "win_rate", "profit_factor",
    }
)  # fmt: skip
"""Metrics of which more is better; drawdowns and tails are negative."""

FIGURES: Mapping[str, Shown] = {
    **{
        name: Shown(title, form, "more" if name in _MORE else "neither")
        for name, (title, form) in METRICS.items()
    },
    "best_score": Shown("best evaluation score", "{:+.5g}", "more"),
    "best_update": Shown("update of the best", "{:,.0f}"),
    "last_score": Shown("last evaluation score", "{:+.5g}", "more"),
    "evaluations": Shown("evaluations", "{:,.0f}"),
    "episode_return": Shown("return of training episodes", "{:+.5g}"),
    "updates": Shown("updates", "{:,.0f}"),
    "steps": Shown("steps", "{:,.0f}"),
    "alarms": Shown("alarms", "{:,.0f}"),
}
"""Figures that are set side by side, in their order: those of trading, then those of training."""


class Row(NamedTuple):
    """One line of a table: what, and one cell for each entry, None where it has none."""

    name: str
    cells: tuple[str | None, ...]
    best: int | None = None
    """Entry with the better figure; None where none is, or where it cannot be told."""
    spoiled: bool = False
    """Whether something that differs forbids to compare this line."""
    same: bool | None = None
    """Whether all cells are equal; None where fewer than two are filled, or where it is no matter.
    """


def figure_rows(entries: Sequence[Entry], spoiled: frozenset[str]) -> Iterable[Row]:
    """Yield the figures that any of them has; in a spoiled one none is called the better."""
    for name, shown in FIGURES.items():
        figures = [entry.figures.get(name) for entry in entries]
        if not any(figures):
            continue
        lost = name in spoiled and sum(figure is not None for figure in figures) > 1
        cells = tuple(None if figure is None else cell(figure, shown.form) for figure in figures)
        best = None if lost or shown.better == "neither" else _best(figures)
        yield Row(name, cells, best=best, spoiled=lost)


def _best(figures: Sequence[Statement | None]) -> int | None:
    """Return the place of the largest value; None where one has none, or two share it."""
    known = [figure for figure in figures if figure is not None]
    values = [figure.value for figure in known if figure.value is not None]
    if len(values) < len(figures) or values.count(max(values)) > 1:
        return None
    return values.index(max(values))


def setting_rows(entries: Sequence[Entry]) -> Iterable[Row]:
    """Yield the settings that differ among the entries that have settings of that section.

    A setting that is not written down is nothing: TOML has no word for it.
    """
    only_runs = all(entry.kind == "run" for entry in entries)
    heads = [entry.sections() for entry in entries]
    for path in sorted({path for entry in entries for path in entry.settings}):
        having = [path.partition(".")[0] in own for own in heads]
        values = [entry.settings.get(path) for entry in entries]
        known = {key(value) for value, has in zip(values, having, strict=True) if has}
        if len(known) > 1:
            cells = tuple(
                toml.shown(value) if has else None
                for value, has in zip(values, having, strict=True)
            )
            yield Row(path.removeprefix("training.") if only_runs else path, cells)


def hash_rows(entries: Sequence[Entry]) -> Iterable[Row]:
    """Yield every hash that any of them has."""
    for name in dict.fromkeys(name for entry in entries for name in entry.hashes):
        cells = tuple(entry.hashes.get(name) for entry in entries)
        known = [digest for digest in cells if digest is not None]
        if known:
            yield Row(name, cells, same=len(set(known)) == 1 if len(known) > 1 else None)


def reason_rows(entries: Sequence[Entry]) -> Iterable[Row]:
    """Yield every rule of the verdicts, with the reason of each validation."""
    given = [
        {reason.name: reason for reason in entry.verdict.reasons} if entry.verdict else {}
        for entry in entries
    ]
    for name in dict.fromkeys(name for table in given for name in table):
        yield Row(name, tuple(_reason_text(table.get(name)) for table in given))


def _reason_text(reason: Reason | None) -> str | None:
    if reason is None:
        return None
    word = "unknown" if reason.holds is None else "holds" if reason.holds else "fails"
    return f"{word}: {reason.words}"


def key(value: JsonValue) -> bytes:
    """Return a text that two values share exactly if they are equal."""
    return documents.encode(value)
