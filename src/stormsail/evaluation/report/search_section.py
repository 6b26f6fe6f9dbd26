"""Section of a report about searches: parallel coordinates, importance, history, all trials."""

import math
from collections.abc import Iterator, Sequence

from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.report.charts import Figure
from stormsail.evaluation.report.html import (
    NONE,
    Cell,
    chart,
    data_table,
    escape,
    missing,
    note,
    section,
    table,
)
from stormsail.evaluation.searches import Range, SavedSearch, SavedTrial, Value

MOST_LINES = 300
"""Trials that are drawn in parallel coordinates, the best ones of a larger search."""

MOST_CHARTS = 12
"""Settings that have a chart of their own, the most important ones of a larger search."""

_LEFT, _TOP, _HEIGHT, _STEP, _RIGHT = 70, 44, 240, 150, 80
"""Pixels: margins, height of an axis, distance of two axes."""

_TICKS = 5
_FAINT = 0.15
"""How much of its colour the line of the worst trial has."""

_COLOURS = {"finished": "@c1", "pruned": "@reference", "diverged": "@bad", "running": "@c2"}
_SCORED = ("finished", "pruned", "running", "diverged")


def search_section(searches: Sequence[SavedSearch]) -> str:
    """Return what searches found; empty where none was passed."""
    body = ""
    for place, search in enumerate(searches):
        body += f"<h3>{escape(search.name)}</h3>" if len(searches) > 1 else ""
        body += note(_summary(search)) + _best_values(search) + _parallel(search)
        body += f'<div class="pair">{_importance(search, place)}{_history(search, place)}</div>'
        body += _slices(search, place) + _trials(search, place)
    lead = (
        "Each trial is a training of its own with other values, proposed by TPE and given up early "
        "by ASHA where it falls behind. Fitness is that of the evaluation span, smoothed over "
        "rungs; no trial saw bars behind it. The best of many is too good by chance: every trial "
        "is in the trial ledger, and `stormsail validate` counts them in its verdict."
    )
    return section("search", "Search", body, lead=lead) if body else ""


def parallel_svg(search: SavedSearch) -> str:
    """Return parallel coordinates: an axis for each setting and one for the fitness.

    A line is a trial. The better its place, the more colour it has; pruned ones are dashed, and the
    best one is thick.
    """
    drawn = [trial for trial in search.ranking() if trial.scores][:MOST_LINES]
    paths = [*search.over]
    width = _LEFT + _STEP * len(paths) + _RIGHT
    height = _TOP + _HEIGHT + 30
    parts = [
        f'<svg class="parallel" role="img" aria-label="values and fitness of the trials" '
        f'width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    ]
    scores = [trial.fitness for trial in drawn]
    low, high = (min(scores), max(scores)) if scores else (0.0, 1.0)
    fitness = Range(low, high if high > low else low + 1.0, (), is_log_scale=False)
    axes = [*search.over.values(), fitness]
    for place in range(len(drawn) - 1, -1, -1):  # the best ones above the others
        trial = drawn[place]
        values: list[Value] = [*(trial.values[path] for path in paths), trial.fitness]
        points = " ".join(
            f"{_LEFT + _STEP * at},{_height(axis.place(value)):.1f}"
            for at, (axis, value) in enumerate(zip(axes, values, strict=True))
        )
        share = 1.0 - (1.0 - _FAINT) * place / max(1, len(drawn) - 1)
        kind = "best" if trial.number == search.best else trial.state
        parts.append(
            f'<polyline class="{escape(kind)}" stroke-opacity="{share:.3f}" points="{points}">'
            f"<title>{escape(_words(trial))}</title></polyline>"
        )
    for at, (name, axis) in enumerate(zip([*paths, "fitness"], axes, strict=True)):
        whole = all(type(trial.values.get(name)) is int for trial in drawn)
        parts += _axis(_LEFT + _STEP * at, name, axis, whole=whole)
    return "".join(parts) + "</svg>"


def importance_figure(search: SavedSearch) -> Figure:
    """Return the share of each setting in what makes the best trials different, as bars."""
    names = sorted(search.importance, key=lambda path: search.importance[path])
    bars = {
        "type": "bar",
        "orientation": "h",
        "name": "importance",
        "x": [search.importance[name] for name in names],
        "y": names,
        "marker": {"color": "@c1"},
    }
    layout = {
        "xaxis": {"tickformat": ".0%", "title": {"text": "importance"}},
        "yaxis": {"type": "category"},
        "showlegend": False,
    }
    return {"data": [bars], "layout": layout}


def history_figure(search: SavedSearch) -> Figure:
    """Return the fitness of each trial by its number, and the best finished one so far."""
    better = max if search.mode == "max" else min
    best, so_far = list[float](), list[int]()
    for trial in search.trials:
        if trial.state == "finished":
            best.append(better([trial.fitness, *best[-1:]]))
            so_far.append(trial.number)
    data: list[Figure] = [
        _dots([trial.number for trial in own], own, state)
        for state in _SCORED
        if (own := _scored(search, state))
    ]
    if best:
        data.append(
            {
                "type": "scatter", "mode": "lines", "name": "best so far", "x": so_far, "y": best,
                "line": {"color": "@c1", "width": 2.0, "shape": "hv"},
            }
        )  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": "trial"}},
        "yaxis": {"title": {"text": "fitness"}},
        "showlegend": True,
    }
    return {"data": data, "layout": layout}


def slice_figure(search: SavedSearch, path: str) -> Figure:
    """Return the fitness of trials over the values of one setting."""
    axis = search.over[path]
    data = [
        _dots([_plain(trial.values[path], axis) for trial in own], own, state)
        for state in _SCORED
        if (own := _scored(search, state))
    ]
    kind = "category" if axis.values else ("log" if axis.is_log_scale else "linear")
    layout = {
        "xaxis": {"title": {"text": path}, "type": kind},
        "yaxis": {"title": {"text": "fitness"}},
        "showlegend": False,
    }
    return {"data": data, "layout": layout}


def _scored(search: SavedSearch, state: str) -> list[SavedTrial]:
    return [trial for trial in search.trials if trial.state == state and trial.scores]


def _dots(x: Sequence[JsonValue], trials: Sequence[SavedTrial], state: str) -> Figure:
    return {
        "type": "scatter", "mode": "markers", "name": state, "x": list(x),
        "y": [trial.fitness for trial in trials],
        "marker": {"color": _COLOURS[state], "size": 7, "opacity": 0.8},
    }  # fmt: skip


def _plain(value: Value, axis: Range) -> JsonValue:
    return _shown(value) if axis.values else float(value)


def _height(place: float) -> float:
    return _TOP + _HEIGHT * (1.0 - place)


def _axis(x: int, name: str, axis: Range, *, whole: bool) -> Iterator[str]:
    yield f'<line class="axis" x1="{x}" x2="{x}" y1="{_TOP}" y2="{_TOP + _HEIGHT}"/>'
    section_name, _, short = name.rpartition(".")
    yield f'<text class="name" x="{x}" y="{_TOP - 12}">{escape(short)}</text>'
    if section_name:
        yield f'<text class="section" x="{x}" y="{_TOP - 26}">{escape(section_name)}</text>'
    ticks = _ticks(axis)
    for value in dict.fromkeys(round(float(tick)) for tick in ticks) if whole else ticks:
        y = _height(axis.place(value))
        yield f'<text class="tick" x="{x + 5}" y="{y + 4:.1f}">{escape(_shown(value))}</text>'


def _ticks(axis: Range) -> list[Value]:
    if axis.low is None or axis.high is None:
        return list(axis.values)
    shares = [k / (_TICKS - 1) for k in range(_TICKS)]
    if axis.is_log_scale:
        return [axis.low * (axis.high / axis.low) ** share for share in shares]
    return [axis.low + (axis.high - axis.low) * share for share in shares]


def _summary(search: SavedSearch) -> str:
    counts = {
        state: len([trial for trial in search.trials if trial.state == state])
        for state in ("finished", "pruned", "diverged", "running", "refused", "failed")
    }
    words = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    done = f"{len(search.counted)} trials on `{search.task}`: {words or 'none yet'}. "
    if search.best is None:
        return done + "No trial has finished."
    best = search.trials[search.best]
    values = ", ".join(f"`{path}` {_shown(value)}" for path, value in best.values.items())
    return f"{done}Best: trial {best.number} with fitness {best.fitness:.4g}; {values}."


def _best_values(search: SavedSearch) -> str:
    """Return what was searched, and where the best values lie in it."""
    rows: list[list[Cell]] = []
    for path, axis in search.over.items():
        value = None if search.best is None else search.trials[search.best].values[path]
        rows.append(
            [path, _range(axis), NONE if value is None else _shown(value), _edge(axis, value)]
        )
    return table(["setting", "searched", "best", ""], rows, classes="words-table")


def _edge(axis: Range, value: Value | None) -> str:
    """Return a warning where the best value lies at an end of its range."""
    if value is None or axis.values or 0.05 <= axis.place(value) <= 0.95:
        return ""
    return "at the edge of its range: a wider one may hold a better value"


def _range(axis: Range) -> str:
    if axis.values:
        return ", ".join(map(_shown, axis.values))
    scale = ", log scale" if axis.is_log_scale else ""
    return f"{_shown(axis.low or 0.0)} to {_shown(axis.high or 0.0)}{scale}"


def _parallel(search: SavedSearch) -> str:
    if not any(trial.scores for trial in search.trials):
        return missing("No trial has a score yet.")
    words = (
        "A line is a trial, from its values to its fitness; point at one to read it. The better "
        "its place, the more colour it has. The thick one is the best, dashed ones were given up "
        "early, so their fitness is that of fewer steps."
    )
    shown = len([trial for trial in search.counted if trial.scores])
    if shown > MOST_LINES:
        words += f" The best {MOST_LINES} of {shown} trials are drawn."
    figure = f'<div class="scroll" tabindex="0">{parallel_svg(search)}</div>'
    return f"<figure>{figure}<figcaption>{escape(words)}</figcaption></figure>"


def _importance(search: SavedSearch, place: int) -> str:
    if not search.importance:
        return missing("Importance is not known: too few trials have finished, or all are alike.")
    words = (
        "Which settings set the best quarter of the finished trials apart (PED-ANOVA). Pruned "
        "trials have no part in it, so with few finished ones it is a hint and no more."
    )
    height = 90 + 30 * len(search.importance)
    figure = importance_figure(search)
    return chart(f"search-{place}-importance", figure, height=height, caption=words)


def _history(search: SavedSearch, place: int) -> str:
    if not any(trial.scores for trial in search.trials):
        return ""
    words = "Last score of each trial, in the order in which they began."
    return chart(f"search-{place}-history", history_figure(search), height=280, caption=words)


def _slices(search: SavedSearch, place: int) -> str:
    if not any(trial.scores for trial in search.trials):
        return ""
    order = sorted(search.over, key=lambda path: -search.importance.get(path, 0.0))
    charts = "".join(
        chart(f"search-{place}-{at}", slice_figure(search, path), height=240)
        for at, path in enumerate(order[:MOST_CHARTS])
    )
    return f'<div class="pair">{charts}</div>'


def _trials(search: SavedSearch, place: int) -> str:
    columns = [
        ("trial", "number"),
        ("state", "text"),
        ("fitness", "number"),
        ("steps", "number"),
        *((path, "text" if axis.values else "number") for path, axis in search.over.items()),
        ("why it ended", "text"),
    ]
    rows: list[list[JsonValue]] = [
        [
            trial.number,
            trial.state,
            trial.fitness if trial.scores else None,
            trial.steps,
            *(_plain(trial.values[path], axis) for path, axis in search.over.items()),
            trial.reason,
        ]
        for trial in [*search.ranking(), *_untried(search)]
    ]
    return data_table(f"search-{place}-trials", columns, rows)


def _untried(search: SavedSearch) -> list[SavedTrial]:
    return [trial for trial in search.trials if trial not in search.counted]


def _words(trial: SavedTrial) -> str:
    values = ", ".join(f"{path} {_shown(value)}" for path, value in trial.values.items())
    return (
        f"trial {trial.number}, {trial.state} after {trial.steps} steps: "
        f"fitness {trial.fitness:.4g}; {values}"
    )


def _shown(value: Value) -> str:
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.3g}"
    return str(value).lower() if isinstance(value, bool) else str(value)
