"""The comparison as one HTML page without network access."""

from collections.abc import Iterable, Mapping, Sequence

from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.compare.compare import Comparison
from stormsail.evaluation.compare.rows import FIGURES, Row
from stormsail.evaluation.compare.sources import Entry
from stormsail.evaluation.report.charts import colour_of, curve
from stormsail.evaluation.report.html import (
    badge,
    chart,
    escape,
    header,
    missing,
    note,
    page,
    section,
    table,
)
from stormsail.evaluation.report.series import growth
from stormsail.evaluation.report.words import DECISION_KINDS

BETTER = "★"
"""Mark of the better of comparable figures."""

_SAME = {True: "same", False: "differs", None: None}


def comparison_page(compared: Comparison) -> str:
    """Return the page; the same comparison is the same bytes."""
    parts: dict[str, tuple[str, str]] = {
        "warnings": ("What differs", _warnings(compared)),
        "figures": ("Figures", _figures(compared)),
        "curves": ("Curves", _curves(compared)),
        "settings": ("Settings", _settings(compared)),
        "hashes": ("Hashes", _hashes(compared)),
    }
    if any(entry.verdict for entry in compared.entries):
        verdicts = {"verdicts": ("Verdicts", _verdicts(compared))}
        parts = {"warnings": parts["warnings"], **verdicts, **parts}
    contents = [(name, title) for name, (title, _) in parts.items()]
    top = header("Comparison", " · ".join(compared.names), contents)
    body = "".join(section(name, title, html) for name, (title, html) in parts.items())
    return page(
        f"Comparison: {', '.join(compared.names)}",
        f"{top}<main>{body}</main>",
    )


def _warnings(compared: Comparison) -> str:
    if compared.comparable:
        first = note("Figures may be compared: same bars, same costs, same rules.", kind="good")
    else:
        first = note("Figures marked ≠ must not be compared: read why first.", kind="bad")
    caveats = "".join(
        note(caveat.words, kind="bad" if caveat.spoils else "warn") for caveat in compared.caveats
    )
    own = "".join(
        note(f"{entry.name}: {words}", kind="warn")
        for entry in compared.entries
        for words in entry.notes
    )
    rows = [_facts(entry) for entry in compared.entries]
    titles = ("", "kind", "first bar", "end", "bars of", "symbols", "version")
    return first + caveats + own + table(titles, rows, classes="words-table")


def _facts(entry: Entry) -> list[str | None]:
    span = entry.terms.get("span")
    first, end = span if isinstance(span, list) and len(span) == 2 else (None, None)
    symbols = entry.terms.get("symbols")
    names = ", ".join(str(symbol) for symbol in symbols) if isinstance(symbols, list) else None
    return [
        entry.name,
        entry.kind,
        _words(first),
        _words(end),
        _words(entry.terms.get("interval")),
        names,
        entry.code_version,
    ]


def _words(value: JsonValue) -> str | None:
    return None if value is None else str(value)


def _verdicts(compared: Comparison) -> str:
    cards = []
    for entry in compared.entries:
        mark = badge("no verdict")
        words = f"a {entry.kind} has no verdict; `stormsail validate` gives one"
        if entry.verdict is not None:
            decision, words = entry.verdict.decision, entry.verdict.words
            mark = badge(decision, kind=DECISION_KINDS[decision])
        cards.append(_card(entry.name, mark, words))
    rules = table(("rule", *compared.names), _cells(compared.reasons), classes="words-table")
    return f'<div class="cards">{"".join(cards)}</div>{rules}'


def _card(title: str, mark: str, words: str) -> str:
    text = f'<p class="words">{escape(words)}</p>'
    return f'<div class="card"><h3>{escape(title)}</h3>{mark}{text}</div>'


def _figures(compared: Comparison) -> str:
    rows, kinds = [], []
    for row in compared.figures:
        cells: list[str | None] = [
            f"{text} {BETTER}" if place == row.best else text
            for place, text in enumerate(row.cells)
        ]
        title = FIGURES[row.name].title
        rows.append([f"{title} ≠" if row.spoiled else title, *cells])
        kinds.append("differs" if row.spoiled else "")
    legend = note(f"{BETTER} the better figure, significant or not. ≠ must not be compared.")
    pairs = "".join(note(f"{words}.") for words in compared.findings)
    return table(("", *compared.names), rows, kinds=kinds) + legend + pairs


def _curves(compared: Comparison) -> str:
    shown = [
        _chart("equity", [entry for entry in compared.entries if entry.kind != "run"]),
        _chart("scores", [entry for entry in compared.entries if entry.kind == "run"]),
    ]
    return "".join(shown) or missing("None of them has a curve.")


def _chart(name: str, entries: Sequence[Entry]) -> str:
    drawn = [_line(entry, place) for place, entry in enumerate(entries) if entry.curve is not None]
    if not drawn:
        return ""
    layout: dict[str, object] = {"showlegend": True}
    if name == "equity":
        layout |= {"xaxis": {"type": "date"}, "yaxis": {"title": {"text": "growth of 1"}}}
        caption = "What one unit of money became. Click a name to hide its line."
    else:
        layout |= {
            "xaxis": {"title": {"text": "update"}},
            "yaxis": {"title": {"text": "evaluation score"}},
        }
        caption = "Score of each evaluation during training. Click a name to hide its line."
    return chart(f"chart-{name}", {"data": drawn, "layout": layout}, height=380, caption=caption)


def _line(entry: Entry, place: int) -> Mapping[str, object]:
    if entry.curve is None:
        return {}
    run = entry.kind == "run"
    return curve(
        entry.curve.x,
        entry.curve.y if run else growth(entry.curve.y),
        entry.name,
        f"@{colour_of(place)}",
        mode="lines+markers" if run else "lines",
    )


def _settings(compared: Comparison) -> str:
    if not compared.settings:
        return missing("No setting that they share differs.")
    return table(("setting", *compared.names), _cells(compared.settings), classes="codes")


def _hashes(compared: Comparison) -> str:
    rows = [
        [row.name, _SAME[row.same], *(cell and cell[:16] for cell in row.cells)]
        for row in compared.hashes
    ]
    kinds = ["good" if row.same else "warn" for row in compared.hashes]
    return table(("hash of", "", *compared.names), rows, kinds=kinds, classes="codes")


def _cells(rows: Iterable[Row]) -> list[list[str | None]]:
    return [[row.name, *row.cells] for row in rows]
