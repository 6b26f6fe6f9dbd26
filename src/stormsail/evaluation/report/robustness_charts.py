"""Charts of robustness: calibration of predictions, cost sweep, stress, significance.

Each function returns a figure as plain data, in the form of `charts.py`, for `html.chart`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.calibration.windows import cell_weights
from stormsail.evaluation.report.charts import (
    Figure,
    bin_edges,
    caption_at,
    colour_of,
    curve,
    histogram,
    percent_axis,
    shares,
    upright,
)
from stormsail.evaluation.report.series import growth
from stormsail.evaluation.saved import (
    Document,
    Result,
    column,
    items,
    mapping,
    number,
    texts,
)
from stormsail.evaluation.stats.figures import Array

MODES = {"replay": "the same decisions", "decide": "deciding anew"}
"""Ways to trade again at other costs, with their titles."""

_STROKES = {"replay": "solid", "decide": "dash"}
_DASHED = {"color": "@reference", "dash": "dash", "width": 1.2}
_MOST_BP = 120.0  # beyond it a break-even is far enough, and the sweep would shrink to a corner


class Forecast(NamedTuple):
    """Predicted and realised returns of windows, pooled over all windows and symbols."""

    realised: Array
    """[W] discounted growth over the windows."""
    values: Array
    """Points of the predicted distributions."""
    weight: Array
    """Mass at each of them."""


def forecast_of(result: Result) -> Forecast | None:
    """Return realised returns and predicted distributions of a backtest; None without them.

    A realised return is the sum of log growths of an account over `horizon_bars`, discounted as the
    critic does; the document `calibration` holds both numbers.
    """
    calibration = result.part("calibration")
    if (
        calibration is None
        or result.kind != "backtest"
        or "distribution" not in result.decisions.column_names
    ):
        return None
    horizon = number(calibration.get("horizon_bars"))
    discount = number(calibration.get("discount"))
    support = [number(point) for point in items(result.document.get("distribution_support"))]
    if horizon is None or discount is None or None in support or not support:
        return None
    weights = discount ** np.arange(int(horizon), dtype=np.float64)
    saved = result.decisions["distribution"].combine_chunks().flatten().to_numpy()
    distributions = saved.reshape(-1, len(support))
    symbols = texts(result.decisions, "symbol")
    outcomes, predictions = [], []
    for symbol in result.symbols:
        equity = column(result.equity, symbol)
        if (equity <= 0.0).any() or len(equity) <= horizon:
            continue
        step = np.diff(np.log(equity))
        outcomes.append(np.convolve(step, weights[::-1], mode="valid"))
        predictions.append(distributions[symbols == symbol][: len(outcomes[-1])])
    if not outcomes:
        return None
    realised, predicted = np.concatenate(outcomes), np.concatenate(predictions)
    if result.document.get("distribution_kind") == "categorical":
        return Forecast(realised, np.array(support, np.float64), predicted.mean(0))
    cells = cell_weights(np.array(support, np.float64))
    mass = np.full(len(support), 1.0 / len(support)) if cells is None else cells
    weight = np.tile(mass / len(predicted), len(predicted))
    return Forecast(realised, predicted.reshape(-1), weight)


def forecast_figure(forecast: Forecast, tail: Document, place: int) -> Figure:
    """Return the histogram of realised returns of windows over the predicted distribution."""
    edges = bin_edges(np.concatenate((forecast.realised, _spread(forecast))))
    colour = f"@{colour_of(place)}"
    predicted = shares(forecast.values, edges, forecast.weight)
    data = [
        histogram(shares(forecast.realised, edges), edges, "realised", colour, bars=True),
        {**histogram(predicted, edges, "predicted", "@ink", bars=False), "fillcolor": "@ink/0.05"},
    ]
    shapes, notes = [], []
    for row, (name, mark, words) in enumerate(
        (("predicted", "@ink", "CVaR predicted"), ("realised", colour, "realised at its VaR"))
    ):
        level = number(mapping(tail.get(name)).get("value"))
        if level is not None:
            shapes.append(upright(level, mark, dash="dash" if row == 0 else "solid"))
            notes.append(caption_at(level, f"{words} {level:.2%}", mark, row=row))
    layout = {
        "xaxis": percent_axis("growth over a window"),
        "yaxis": percent_axis("share", hover=".2%"),
        "shapes": shapes,
        "annotations": notes,
    }
    return {"data": data, "layout": layout}


def _spread(forecast: Forecast) -> Array:
    """Return the predicted points that carry mass: an empty atom must not widen the chart."""
    heavy = np.broadcast_to(forecast.weight > 1e-4 * forecast.weight.max(), forecast.values.shape)
    return np.asarray(forecast.values[heavy])


def coverage_figure(results: Sequence[tuple[str, int, Document]]) -> Figure:
    """Return the coverage of predicted quantiles: share of outcomes below against the level.

    Of each result: name, place and `calibration` document.
    """
    ideal = {"type": "scatter", "mode": "lines", "name": "as it should be", "hoverinfo": "skip"}
    data: list[Figure] = [{**ideal, "x": [0, 1], "y": [0, 1], "line": dict(_DASHED)}]
    for name, place, calibration in results:
        covered = map(_covered, items(calibration.get("coverage")))
        points = [point for point in covered if point is not None]
        if not points:
            continue
        x, y, low, high = np.array(points).T
        colour = f"@{colour_of(place)}"
        bars = {"type": "data", "symmetric": False, "array": high - y, "arrayminus": y - low}
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": name,
                "x": x,
                "y": y,
                "line": {"color": colour, "width": 1.4},
                "marker": {"size": 6},
                "error_y": {**bars, "thickness": 1, "width": 2, "color": colour},
            }
        )
    axis = {"tickformat": ".0%", "range": [0, 1], "hoverformat": ".1%", "dtick": 0.2}
    layout = {
        "xaxis": {**axis, "title": {"text": "predicted level"}},
        "yaxis": {**axis, "title": {"text": "outcomes below"}},
    }
    return {"data": data, "layout": layout}


def _covered(entry: JsonValue) -> tuple[float, float, float, float] | None:
    """Return level, share and its interval; None without enough data."""
    share = mapping(mapping(entry).get("share"))
    level, value = number(mapping(entry).get("level")), number(share.get("value"))
    if level is None or value is None:
        return None
    low, high = number(share.get("low")), number(share.get("high"))
    return level, value, value if low is None else low, value if high is None else high


def pit_figure(results: Sequence[tuple[str, int, Document]]) -> Figure:
    """Return the probability integral transform (PIT) of outcomes over its expected share.

    It is 1 everywhere if the predicted distribution is right. Of each result: name, place and
    `calibration` document.
    """
    data: list[Figure] = []
    for name, place, calibration in results:
        pit = mapping(calibration.get("pit"))
        edges, share, expected = (_array(pit.get(key)) for key in ("edges", "share", "expected"))
        if share.size:
            height = share / np.where(expected > 0.0, expected, 1.0)
            colour = f"@{colour_of(place)}"
            data.append({"name": name, **_cells(edges, height, colour, bars=len(results) == 1)})
    even = {"type": "line", "x0": 0, "x1": 1, "y0": 1, "y1": 1, "line": dict(_DASHED)}
    levels = {
        "title": {"text": "level of the predicted distribution"},
        "tickformat": ".0%",
        "dtick": 0.2,
    }
    heights = {"title": {"text": "outcomes over expected"}, "hoverformat": ".2f"}
    layout = {
        "xaxis": {**levels, "range": [0, 1]},
        "yaxis": {**heights, "rangemode": "tozero"},
        "shapes": [even],
        "showlegend": len(results) > 1,
    }
    return {"data": data, "layout": layout}


def _cells(edges: Array, height: Array, colour: str, *, bars: bool) -> Figure:
    """Return cells of different widths, as bars or as steps that others can lie over."""
    if bars:
        middle, width = (edges[:-1] + edges[1:]) / 2.0, 0.94 * np.diff(edges)
        painted = {"color": f"{colour}/0.55"}
        return {"type": "bar", "x": middle, "y": height, "width": width, "marker": painted}
    stroke = {"color": colour, "shape": "hv", "width": 1.8}
    closed = np.append(height, height[-1])
    return {"type": "scatter", "mode": "lines", "x": edges, "y": closed, "line": stroke}


def costs_figure(results: Sequence[tuple[str, int, Document, float | None]]) -> Figure:
    """Return the total return at several costs, with break-even and what was charged.

    Of each result: name, place, `costs` document, and charged cost in basis points.
    """
    data, shapes, notes = [], [], []
    alone = len(results) == 1
    for row, (name, place, costs, charged) in enumerate(results):
        prefix = "" if alone else f"{name}: "
        for mode, words in MODES.items():
            swept = _swept(mapping(mapping(costs.get(mode)).get("sweep_bp")))
            stroke = {"color": f"@{colour_of(place)}", "dash": _STROKES[mode]}
            if swept["x"]:
                data.append({**swept, "name": f"{prefix}{words}", "line": stroke})
        even = number(mapping(mapping(costs.get("replay")).get("break_even")).get("cost_bp"))
        marks = ((even, "break-even", "@good"), (charged, "charged", "@bad"))
        for line, (at, words, mark) in enumerate(marks):
            if at is not None:
                shapes.append(upright(at, mark, dash="dot"))
                label = f"{prefix}{words} {at:.1f} bp"
                notes.append(caption_at(at, label, mark, row=2 * row + line, side="left"))
    widest = max([20.0, *(shape["x0"] * 1.12 for shape in shapes)])
    bp = {"title": {"text": "cost of a fill, basis points of notional"}}
    total = percent_axis("total return")
    layout = {
        "xaxis": {**bp, "range": [-0.5, min(widest, _MOST_BP)]},
        "yaxis": {**total, "zeroline": True},
        "shapes": shapes,
        "annotations": notes,
    }
    return {"data": data, "layout": layout}


def _swept(sweep: Document) -> Figure:
    """Return the total return at each cost, in order of cost."""
    read = ((float(bp), number(mapping(each).get("total_return"))) for bp, each in sweep.items())
    points = sorted((bp, total) for bp, total in read if total is not None)
    x, y = [bp for bp, _ in points], [total for _, total in points]
    return {"type": "scatter", "mode": "lines+markers", "x": x, "y": y}


def _array(value: JsonValue) -> Array:
    return np.array([number(item) or 0.0 for item in items(value)], np.float64)


def fan_figure(result: Result, fan: Document, place: int) -> Figure:
    """Return quantile bands of bootstrapped equity paths around the realised path."""
    ts = _array(fan.get("ts"))
    levels = _array(fan.get("levels")).tolist()
    bands = [_array(band) for band in items(fan.get("equity"))]
    colour = f"@{colour_of(place)}"
    data: list[Figure] = []
    for low in range(len(levels) // 2):
        high = len(levels) - 1 - low
        edge = {
            "type": "scatter",
            "mode": "lines",
            "line": {"width": 0},
            "hoverinfo": "skip",
            "x": ts,
        }
        data.append({**edge, "y": bands[low] - 1.0, "showlegend": False})
        name = f"{levels[low]:.0%} to {levels[high]:.0%}"
        fill = {"fill": "tonexty", "fillcolor": f"{colour}/{0.12 + 0.12 * low:.2f}", "name": name}
        data.append({**edge, **fill, "y": bands[high] - 1.0})
    if len(levels) % 2:
        middle = {"color": colour, "dash": "dot", "width": 1.4}
        line = {"type": "scatter", "mode": "lines", "line": middle, "name": "median"}
        data.append({**line, "x": ts, "y": bands[len(levels) // 2] - 1.0})
    data.append(curve(result.ts, growth(result.total) - 1.0, "realised", "@ink", width=1.8))
    axis = percent_axis("return since the start", hover="+.1%")
    return {"data": data, "layout": {"xaxis": {"type": "date"}, "yaxis": axis}}


def stress_figure(results: Sequence[tuple[str, int, Document]]) -> Figure:
    """Return the total return of each scenario as bars, those of several results side by side."""
    data = []
    for name, place, scenarios in results:
        returns = [number(mapping(each).get("total_return")) for each in scenarios.values()]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": list(scenarios),
                "x": returns,
                "marker": {"color": f"@{colour_of(place)}"},
            }
        )
    layout = {
        "xaxis": {**percent_axis("total return"), "zeroline": True},
        "yaxis": {"autorange": "reversed", "type": "category"},
        "hovermode": "closest",
        "bargap": 0.3,
        "showlegend": len(results) > 1,
    }
    return {"data": data, "layout": layout}
