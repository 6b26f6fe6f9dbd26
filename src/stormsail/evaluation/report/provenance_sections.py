"""Sections of a report about provenance: training curves, trades, hashes and settings."""

from collections.abc import Mapping, Sequence

import numpy as np

from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.report.html import (
    NONE,
    chart,
    data_table,
    escape,
    folded,
    missing,
    note,
    section,
    table,
)
from stormsail.evaluation.report.sections import reasons
from stormsail.evaluation.report.training_charts import training_figures
from stormsail.evaluation.saved import Result, TrainingRun, column, flat, items, mapping, texts
from stormsail.evaluation.walk_forward.verdict import Reason
from stormsail.market.terms import term_lines

MOST_TRADES = 4_000
"""Trades that the page holds; the folder holds all."""

_DIGITS = 10
_MOST_ALARMS = 50


def training_section(runs: Sequence[TrainingRun]) -> str:
    """Return training curves with alarms."""
    curves = "".join(
        f"<div><h3>{escape(title)}</h3>{chart(f'curve-{place}', picture, height=250)}</div>"
        for place, (title, picture) in enumerate(training_figures(runs))
    )
    empty = missing("the runs hold no metric that is drawn here")
    body = f'<div class="pair">{curves}</div>' if curves else empty
    for run in runs:
        title = f"Alarms of {run.name}" if len(runs) > 1 else "Alarms"
        body += f"<h3>{escape(title)}</h3>{_alarms(run)}"
    lead = f"{', '.join(run.name for run in runs)}. Dotted lines are alarms."
    return section("training", "Training", body, lead=lead)


def _alarms(run: TrainingRun) -> str:
    alarms = run.alarms()
    if not alarms:
        return note(f"None in {run.metrics.num_rows:,} updates.", kind="good")
    lines = [
        Reason(
            str(alarm.get("name")),
            holds=False if alarm.get("severity") in ("alert", "error") else None,
            words=f"Update {alarm.get('update')}, {alarm.get('severity')} `{alarm.get('name')}`: "
            f"{alarm.get('message')}",
        )
        for alarm in alarms
    ]
    rest = len(lines) - _MOST_ALARMS
    more = note(f"{rest:,} more are in `events.jsonl`.") if rest > 0 else ""
    return reasons(lines[:_MOST_ALARMS]) + more


def trades_section(results: Sequence[Result]) -> str:
    """Return a table of all trades, to be sorted, filtered and paged through."""
    body = ""
    most = MOST_TRADES // len(results)
    for place, result in enumerate(results):
        count = result.trades.num_rows
        if len(results) > 1:
            body += f"<h3>{escape(result.name)}</h3>"
        if not count:
            body += missing("nothing was traded")
            continue
        if count > most:
            body += note(f"The last {most:,} of {count:,} trades; `trades.parquet` holds all.")
        body += data_table(f"trades-{place}", *_trades(result, most))
    lead = "Fills and liquidations at the open of their bar, UTC. Fee and slippage in quote money."
    return section("trades", "Trades", body, lead=lead)


def _trades(result: Result, most: int) -> tuple[list[tuple[str, str]], list[list[JsonValue]]]:
    """Return columns and rows of the last trades."""
    table_ = result.trades.slice(max(0, result.trades.num_rows - most))
    kinds = {"ts": "time", "symbol": "text", "side": "text", "reason": "text"}
    columns: list[tuple[str, str]] = []
    values: list[list[JsonValue]] = []
    for name in table_.column_names:
        kind = kinds.get(name, "number")
        columns.append(("time" if name == "ts" else name, kind))
        if kind == "text":
            values.append([str(text) for text in texts(table_, name)])
        else:
            values.append([_rounded(value) for value in column(table_, name).tolist()])
    return columns, [list(row) for row in zip(*values, strict=True)]


def _rounded(value: float) -> JsonValue:
    if not np.isfinite(value):
        return None
    short = float(f"{value:.{_DIGITS}g}") if abs(value) < 1e9 else value
    return int(short) if short.is_integer() else short


def origin_section(results: Sequence[Result]) -> str:
    """Return hashes and settings; rows in which results differ are marked."""
    names = [result.name for result in results]
    trained = [_settings(result, "training") for result in results]
    body = f"<h3>Hashes</h3>{_columns(names, [_hashes(result) for result in results])}"
    body += _assumptions(results)
    body += f"<h3>Instrument terms</h3>{_terms(results)}"
    settings = [_settings(result, "settings") for result in results]
    body += folded("Settings", _columns(names, settings), paper=False)
    if any(trained):
        body += folded("Settings of the training", _columns(names, trained), paper=False)
    lead = "The same data, settings, agent and version give the same results, byte for byte."
    if len(results) > 1:
        lead += " Rows in which the results differ are marked."
    return section("origin", "Data, configuration, agent", body, lead=lead)


def _assumptions(results: Sequence[Result]) -> str:
    """Return what is assumed of funding and margin, result by result."""
    sentences = {
        result.name: items(mapping(result.document.get("assumptions")).get("words"))
        for result in results
    }
    if not any(sentences.values()):
        return ""
    lines = [
        note(f"{name}: {words}" if len(results) > 1 else str(words))
        for name, texts_ in sentences.items()
        for words in texts_
    ]
    return f"<h3>Funding and margin</h3>{''.join(lines)}"


def _hashes(result: Result) -> dict[str, str]:
    document = result.document
    saved = mapping(document.get("hashes"))
    hashes = {name: str(value) for name, value in saved.items() if value is not None}
    if document.get("order_hash") is not None:
        hashes["orders"] = str(document["order_hash"])
    agents = {f"{mapping(run).get('agent')}" for run in items(document.get("runs"))} - {"None"}
    if agents:
        hashes["agents"] = ", ".join(sorted(agents))
    trials = mapping(document.get("trials"))
    if trials:
        hashes["trials"] = ", ".join(f"{name} {_text(value)}" for name, value in trials.items())
    hashes["version"] = f"stormsail {document.get('code_version')}"
    return hashes


def _terms(results: Sequence[Result]) -> str:
    """Return by which terms each symbol was traded and who stated them; defaults are named."""
    rows = []
    for result in results:
        for line in term_lines(mapping(result.document.get("instruments"))):
            symbols, _, words = line.partition(": ")
            rows.append([*([result.name] if len(results) > 1 else []), symbols, words])
    if not rows:
        return missing("none are recorded")
    heads = [*(["result"] if len(results) > 1 else []), "symbols", "kind, order steps, costs"]
    return table(heads, rows)


def _settings(result: Result, key: str) -> dict[str, str]:
    leaves = flat(mapping(result.document.get(key)))
    return {path: _text(value) for path, value in leaves.items()}


def _columns(names: Sequence[str], columns: Sequence[Mapping[str, str]]) -> str:
    """Return a table with one column a result and one row a key that any of them has."""
    keys = list(dict.fromkeys(key for values in columns for key in values))
    if not keys:
        return missing("none are recorded")
    rows = [[key, *(values.get(key, NONE) for values in columns)] for key in keys]
    kinds = ["differs" if len(set(row[1:])) > 1 else "" for row in rows]
    return table(["", *names], rows, kinds=kinds, classes="codes")


def _text(value: JsonValue) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_text(item) for item in value)}]"
    if isinstance(value, float):
        return f"{value:.10g}"
    return "none" if value is None or value == {} else str(value)
