"""Section of a report about parity: a traded account beside the backtest of the same bars."""

from collections.abc import Sequence

from stormsail.evaluation.report.html import NONE, escape, note, section, table
from stormsail.evaluation.saved import Document, SavedParity, items, mapping, number


def parity_section(parities: Sequence[SavedParity]) -> str:
    """Return decisions that differ and fills against the simulator; empty where none was passed."""
    body = ""
    for parity in parities:
        body += f"<h3>{escape(parity.name)}</h3>" if len(parities) > 1 else ""
        body += note(_decisions(parity.document)) + _fills(parity.document)
    lead = (
        "What was traded, beside what the backtest engine makes of the recorded bars. Decisions "
        "are compared to the last bit; fills in basis points of the price that the simulator "
        "expected, positive where they were worse."
    )
    return section("parity", "Parity", body, lead=lead) if body else ""


def _decisions(document: Document) -> str:
    differ, compared = document.get("decision_differences"), document.get("decisions")
    words = (
        f"{document.get('mode')}, {document.get('bars')} bars: {differ} of {compared} decisions "
    )
    words += f"differ ({document.get('words')})."
    first = mapping(document.get("first"))
    if first:
        words += (
            f" The first: {first.get('bar')} {first.get('symbol')}, {first.get('what')} was "
            f"{first.get('recorded')} and is {first.get('replayed')}."
        )
    return words


def _fills(document: Document) -> str:
    rows = []
    for item in items(document.get("fills")):
        gap = mapping(item)
        figures = [number(gap.get(name)) for name in ("mean_bp", "worst_bp")]
        cells = [NONE if figure is None else f"{figure:+.2f}" for figure in figures]
        rows.append([escape(str(gap.get("symbol"))), str(gap.get("fills")), *cells])
    return table(["symbol", "fills", "mean, bp", "worst, bp"], rows) if rows else ""
