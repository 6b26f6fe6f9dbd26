"""Sections of a report about what to doubt and where it comes from.

Calibration, costs, stress, chance, training, trades, hashes and settings.
"""

from collections.abc import Iterator, Mapping, Sequence

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
from stormsail.evaluation.report.results import (
    Document,
    Result,
    TrainingRun,
    column,
    items,
    mapping,
    number,
    texts,
)
from stormsail.evaluation.report.robustness_charts import (
    MODES,
    costs_figure,
    coverage_figure,
    fan_figure,
    pit_figure,
    stress_figure,
)
from stormsail.evaluation.report.sections import SIDE_BY_SIDE, per_result, reasons
from stormsail.evaluation.report.training_charts import training_figures
from stormsail.evaluation.report.words import (
    FINE_PERCENT,
    INTERVALS,
    LUCK,
    Reason,
    cell,
    charged_bp,
    kept_figure,
    named,
    not_measured,
    plain_figure,
)

MOST_TRADES = 20_000
"""Trades that the page holds; the folder holds all."""

_DIGITS = 10
_MOST_ALARMS = 50


def _with(results: Sequence[Result], part: str) -> list[tuple[str, int, Document]]:
    """Return name, place and document of the results that have one."""
    found = ((one, place, one.part(part)) for place, one in enumerate(results))
    return [(one.name, place, told) for one, place, told in found if told is not None]


def _without(results: Sequence[Result], part: str) -> str:
    """Return in words which results were not measured; with one result it has no name."""
    return "".join(
        missing(named(results, one, not_measured(one, part)))
        for one in results
        if one.part(part) is None
    )


def calibration_section(results: Sequence[Result]) -> str:
    """Return whether predicted laws held: coverage, levels of outcomes, tails by regime."""
    known = _with(results, "calibration")
    body = _without(results, "calibration")
    covered = coverage_figure(known)
    spread = pit_figure(known)
    charts = ""
    if len(covered["data"]) > 1:
        words = (
            "On the dashed line the critic is right; below it, outcomes were better than promised."
        )
        charts += f"<div>{chart('coverage-chart', covered, height=330, caption=words)}</div>"
    if spread["data"]:
        words = (
            "Level of the predicted law that each outcome reached (PIT): flat at 1 if it is right."
        )
        charts += f"<div>{chart('pit-chart', spread, height=330, caption=words)}</div>"
    body += f'<div class="pair">{charts}</div>' if charts else ""
    for name, _, told in known:
        title = f"<h3>{escape(name)}</h3>" if len(results) > 1 else ""
        body += title + _calibrated(told)
    lead = "Does the critic know its own tail? Predicted laws against what came, out of its sight."
    return section("calibration", "Calibration", body, lead=lead)


def _calibrated(told: Document) -> str:
    if told.get("reason"):
        return missing(str(told["reason"]))
    regimes = {
        "all": told,
        **{name: mapping(one) for name, one in mapping(told.get("by_regime")).items()},
    }
    rows = []
    for name, one in regimes.items():
        tail = mapping(one.get("tail"))
        told_tail = [cell(tail.get(key), FINE_PERCENT) for key in ("predicted", "realised", "gap")]
        if len(set(told_tail)) == 1:  # all lack data for one reason: it is said once
            told_tail[1:] = [NONE, NONE]
        counts = [plain_figure(one.get(key), "{:,.0f}") for key in ("windows", "independent")]
        flat = cell(mapping(one.get("pit")).get("uniformity"), "{:.3f}")
        rows.append([name, *counts, *told_tail, flat])
    titles = [
        "regime",
        "windows",
        "independent",
        "CVaR predicted",
        "CVaR realised",
        "gap",
        "p of a flat PIT",
    ]
    return _uncovered(told) + table(titles, rows) + _described(told) + _conformal(told)


def _uncovered(told: Document) -> str:
    """Return why levels have no coverage, each reason once."""
    shares = [mapping(mapping(one).get("share")) for one in items(told.get("coverage"))]
    short = [str(one.get("reason")) for one in shares if one.get("value") is None]
    return "".join(
        missing(f"coverage of {short.count(why)} levels: {why}") for why in dict.fromkeys(short)
    )


def _described(told: Document) -> str:
    words = [told.get("what"), told.get("regimes")]
    return folded("What is compared", "".join(note(str(one)) for one in words if one))


def _conformal(told: Document) -> str:
    moved = told.get("conformal")
    if not isinstance(moved, dict):
        return ""
    rows = [
        [f"{number(level) or 0.0:.3g}", cell(shift, "{:+.5f}")]
        for level, shift in zip(
            items(moved.get("levels")), items(moved.get("shifts")), strict=False
        )
    ]
    return folded(
        f"Conformal correction, fitted on {moved.get('windows')} windows",
        table(["level", "add to the quantile"], rows),
    )


def costs_section(results: Sequence[Result]) -> str:
    """Return what other costs would have left, and the cost that breaks even."""
    known = _with(results, "costs")
    body = _without(results, "costs")
    charged = {place: charged_bp(one) for place, one in enumerate(results)}
    picture = costs_figure([(name, place, told, charged[place]) for name, place, told in known])
    if picture["data"]:
        words = "Total return if every fill had cost this much, all in."
        body += chart("costs-chart", picture, height=340, caption=words)
    rows = []
    for name, place, told in known:
        for mode, words in MODES.items():
            if mode not in told:
                continue
            even = mapping(mapping(told[mode]).get("break_even"))
            at = number(even.get("cost_bp"))
            answer = f"{at:.2f} bp" if at is not None else str(even.get("reason"))
            paid = charged[place]
            rows.append(
                [
                    f"{name}: {words}" if len(results) > 1 else words,
                    answer,
                    "nothing traded" if paid is None else f"{paid:.2f} bp",
                ]
            )
    if rows:
        body += table(["", "break-even cost", "charged on average"], rows)
    return section("costs", "Costs", body)


def stress_section(results: Sequence[Result]) -> str:
    """Return the same agent where things go wrong."""
    known = _with(results, "stress")
    body = _without(results, "stress")
    if known:
        rows = max(len(told) for _, _, told in known) * len(known)
        body += chart("stress-chart", stress_figure(known), height=120 + 26 * rows)
        for name, _, told in known:
            if len(results) > 1:
                body += f"<h3>{escape(name)}</h3>"
            lines = [
                [
                    case,
                    *(
                        kept_figure(mapping(one), key, form)
                        for key, (_, form) in SIDE_BY_SIDE.items()
                    ),
                ]
                for case, one in told.items()
            ]
            body += table(["scenario", *(title for title, _ in SIDE_BY_SIDE.values())], lines)
    lead = "Crashes, wider spreads, late orders and bad data; the agent sees it and decides anew."
    return section("stress", "Stress", body, lead=lead)


def luck_section(results: Sequence[Result]) -> str:
    """Return how much of it chance alone would do."""
    lead = (
        "The bars are drawn again in blocks, in other orders: the fan shows where equity could as "
        "well have gone. More trials make a good result less surprising."
    )
    return section("luck", "Luck", per_result(results, _luck), lead=lead)


def _luck(result: Result, place: int) -> str:
    told = result.part("luck")
    if told is None:
        return missing(not_measured(result, "luck"))
    fan = mapping(told.get("fan"))
    if items(fan.get("ts")):
        picture = chart(f"fan-{place}", fan_figure(result, fan, place), height=340)
    else:
        picture = missing(str(fan.get("reason") or "the fan was not measured"))
    rows = [[title, cell(told.get(name), form)] for name, (title, form) in LUCK.items()]
    intervals = mapping(told.get("intervals"))
    rows += [
        [f"{title}, resampled", cell(intervals.get(name), form)]
        for name, (title, form) in INTERVALS.items()
        if name in intervals
    ]
    rows.append(["trials that were made", f"{told.get('trials')}"])
    block = number(intervals.get("block"))
    if block is not None:
        rows.append(["mean length of a block", f"{block:,.4g} bars"])
    return picture + table(["", "value and 95 % interval"], rows)


def training_section(runs: Sequence[TrainingRun]) -> str:
    """Return training curves with alarms."""
    if not runs:
        body = missing("not shown: pass the folder of the training with `--run`")
        return section("training", "Training", body)
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
            holds=False if one.get("severity") in ("alert", "error") else None,
            words=f"Update {one.get('update')}, {one.get('severity')} `{one.get('name')}`: "
            f"{one.get('message')}",
        )
        for one in alarms
    ]
    rest = len(lines) - _MOST_ALARMS
    more = note(f"{rest:,} more are in `events.jsonl`.") if rest > 0 else ""
    return reasons(lines[:_MOST_ALARMS]) + more


def trades_section(results: Sequence[Result]) -> str:
    """Return every fill, to be sorted, filtered and leafed through."""
    body = ""
    for place, one in enumerate(results):
        if len(results) > 1:
            body += f"<h3>{escape(one.name)}</h3>"
        if not one.trades.num_rows:
            body += missing("nothing was traded")
            continue
        most = MOST_TRADES // len(results)
        if one.trades.num_rows > most:
            body += note(
                f"The last {most:,} of {one.trades.num_rows:,} trades; `trades.parquet` holds all."
            )
        body += data_table(f"trades-{place}", *_trades(one, most))
    lead = "Fills and liquidations at the open of their bar, UTC. Fee and slippage in quote money."
    return section("trades", "Trades", body, lead=lead)


def _trades(result: Result, most: int) -> tuple[list[tuple[str, str]], list[list[JsonValue]]]:
    table_ = result.trades.slice(max(0, result.trades.num_rows - most))
    kinds = {
        "ts": "time",
        "symbol": "text",
        "side": "text",
        "reason": "text",
        "fold": "number",
        "seed": "number",
    }
    columns: list[tuple[str, str]] = []
    values: list[list[JsonValue]] = []
    for name in table_.column_names:
        kind = kinds.get(name, "number")
        columns.append(("time" if name == "ts" else name, kind))
        if kind == "text":
            values.append([str(one) for one in texts(table_, name)])
        else:
            values.append([_rounded(one) for one in column(table_, name).tolist()])
    return columns, [list(row) for row in zip(*values, strict=True)]


def _rounded(value: float) -> JsonValue:
    if not np.isfinite(value):
        return None
    short = float(f"{value:.{_DIGITS}g}") if abs(value) < 1e9 else value
    return int(short) if short.is_integer() else short


def origin_section(results: Sequence[Result]) -> str:
    """Return hashes and settings, rows that differ marked."""
    hashes = [_hashes(one) for one in results]
    settings = [dict(_flat(mapping(one.document.get("settings")))) for one in results]
    trained = [dict(_flat(mapping(one.document.get("training")))) for one in results]
    names = [one.name for one in results]
    body = f"<h3>Hashes</h3>{_columns(names, hashes)}"
    body += folded("Settings", _columns(names, settings))
    if any(trained):
        body += folded("Settings of the training", _columns(names, trained))
    lead = "The same data, settings, agent and version give the same results, byte for byte."
    if len(results) > 1:
        lead += " Rows in which the results differ are marked."
    return section("origin", "Data, configuration, agent", body, lead=lead)


def _hashes(result: Result) -> dict[str, str]:
    told = result.document
    found = {
        name: str(value) for name, value in mapping(told.get("hashes")).items() if value is not None
    }
    if told.get("order_hash") is not None:
        found["orders"] = str(told["order_hash"])
    agents = {f"{mapping(one).get('agent')}" for one in items(told.get("runs"))} - {"None"}
    if agents:
        found["agents"] = ", ".join(sorted(agents))
    trials = mapping(told.get("trials"))
    if trials:
        found["trials"] = ", ".join(f"{name} {_text(value)}" for name, value in trials.items())
    found["version"] = f"stormsail {told.get('code_version')}"
    return found


def _columns(names: Sequence[str], found: Sequence[Mapping[str, str]]) -> str:
    keys = list(dict.fromkeys(key for one in found for key in one))
    if not keys:
        return missing("none are recorded")
    rows = [[key, *(one.get(key, NONE) for one in found)] for key in keys]
    kinds = ["differs" if len(set(row[1:])) > 1 else "" for row in rows]
    return table(["", *names], rows, kinds=kinds, classes="codes")


def _flat(value: Document, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield settings by their whole names, `market.costs.taker_fee`."""
    for key, one in value.items():
        name = f"{path}{key}"
        if isinstance(one, dict) and one:
            yield from _flat(one, f"{name}.")
        else:
            yield name, _text(one)


def _text(value: JsonValue) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_text(one) for one in value)}]"
    if isinstance(value, float):
        return f"{value:.10g}"
    return "none" if value is None or value == {} else str(value)
