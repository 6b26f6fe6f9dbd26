"""A comparison as one page that asks nothing of a network."""

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
    plotly_script,
    section,
    table,
)
from stormsail.evaluation.report.series import growth

BETTER = "★"
"""Stands behind the better of comparable figures."""

_SAME = {True: "same", False: "differs", None: None}
_KINDS = {"promote": "good", "not proven": "warn", "reject": "bad"}


def comparison_page(compared: Comparison) -> str:
    """Return the page; the same comparison is the same bytes."""
    parts: dict[str, tuple[str, str]] = {
        "warnings": ("What differs", _warnings(compared)),
        "figures": ("Figures", _figures(compared)),
        "curves": ("Curves", _curves(compared)),
        "settings": ("Settings", _settings(compared)),
        "hashes": ("Hashes", _hashes(compared)),
    }
    if any(one.verdict for one in compared.entries):
        verdicts = {"verdicts": ("Verdicts", _verdicts(compared))}
        parts = {"warnings": parts["warnings"], **verdicts, **parts}
    contents = [(name, title) for name, (title, _) in parts.items()]
    top = header("Comparison", " · ".join(compared.names), contents)
    body = "".join(section(name, title, html) for name, (title, html) in parts.items())
    scripts = [plotly_script()] if any(one.curve for one in compared.entries) else []
    return page(
        f"Comparison: {', '.join(compared.names)}",
        f"{top}<main>{body}</main>",
        scripts=scripts,
    )


def _warnings(compared: Comparison) -> str:
    if compared.comparable:
        first = note("Figures may be compared: same bars, same costs, same rules.", kind="good")
    else:
        first = note("Figures marked ≠ must not be compared: read why first.", kind="bad")
    told = "".join(
        note(one.words, kind="bad" if one.spoils else "warn") for one in compared.caveats
    )
    own = "".join(
        note(f"{one.name}: {words}", kind="warn") for one in compared.entries for words in one.notes
    )
    rows = [_facts(one) for one in compared.entries]
    titles = ("", "kind", "first bar", "end", "bars of", "symbols", "version")
    return first + told + own + table(titles, rows, classes="words-table")


def _facts(entry: Entry) -> list[str | None]:
    span = entry.terms.get("span")
    first, end = span if isinstance(span, list) and len(span) == 2 else (None, None)
    symbols = entry.terms.get("symbols")
    names = ", ".join(str(one) for one in symbols) if isinstance(symbols, list) else None
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
    for one in compared.entries:
        if one.verdict is None:
            words = f"a {one.kind} has no verdict; `stormsail validate` gives one"
            cards.append(_card(one.name, badge("no verdict"), words))
        else:
            kind = _KINDS.get(one.verdict.decision, "info")
            cards.append(_card(one.name, badge(one.verdict.decision, kind=kind), one.verdict.words))
    rules = table(("rule", *compared.names), _cells(compared.reasons), classes="words-table")
    return f'<div class="cards">{"".join(cards)}</div>{rules}'


def _card(title: str, mark: str, words: str) -> str:
    text = f'<p class="words">{escape(words)}</p>'
    return f'<div class="card"><h3>{escape(title)}</h3>{mark}{text}</div>'


def _figures(compared: Comparison) -> str:
    rows, kinds = [], []
    for row in compared.figures:
        cells: list[str | None] = [
            f"{one} {BETTER}" if place == row.best else one for place, one in enumerate(row.cells)
        ]
        title = FIGURES[row.name].title
        rows.append([f"{title} ≠" if row.spoiled else title, *cells])
        kinds.append("differs" if row.spoiled else "")
    told = note(f"{BETTER} the better figure, which may be luck. ≠ must not be compared.")
    pairs = "".join(note(f"{one.words}.") for one in compared.differences)
    return table(("", *compared.names), rows, kinds=kinds) + told + pairs


def _curves(compared: Comparison) -> str:
    shown = [
        _chart("equity", [one for one in compared.entries if one.kind != "run"]),
        _chart("scores", [one for one in compared.entries if one.kind == "run"]),
    ]
    return "".join(shown) or missing("None of them has a curve.")


def _chart(name: str, entries: Sequence[Entry]) -> str:
    drawn = [_line(one, place) for place, one in enumerate(entries) if one.curve is not None]
    if not drawn:
        return ""
    layout: dict[str, object] = {"showlegend": True}
    if name == "equity":
        layout |= {"xaxis": {"type": "date"}, "yaxis": {"title": {"text": "growth of 1"}}}
        caption = "What one unit of money became. Click a name to hide its line."
    else:
        layout |= {
            "xaxis": {"title": {"text": "update"}},
            "yaxis": {"title": {"text": "validation score"}},
        }
        caption = "Score of each validation during training. Click a name to hide its line."
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
