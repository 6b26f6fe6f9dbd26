"""Charts of performance: equity and drawdown, positions and prices, returns, rolling risk.

Each function returns a figure as plain data, for `html.chart`; `charts.js` draws it:

- `data`: lines, areas and markers (`scatter` with `mode`, `line`, `fill`, `marker`, `error_y`) and
  bars, upright or `orientation: h`; `yaxis: y2` is the lower of two charts. Traces of one
  `legendgroup` are hidden together; `visible: legendonly` is hidden at first.
- `layout`: `xaxis`, `yaxis`, `yaxis2` (`type` linear, log, date or category, `range`, `domain`,
  `title`, `tickformat`, `hoverformat`, `dtick`, `rangemode`), upright or flat lines (`shapes`),
  words beside them (`annotations`, each in a `row` of its own), `showlegend`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stormsail.evaluation.report.series import (
    Line,
    Position,
    Rolling,
    drawdown,
    growth,
    position_of,
    thinned,
)
from stormsail.evaluation.saved import Result, Times, column, texts
from stormsail.evaluation.stats.figures import Array, per_bar_sharpe, returns_of
from stormsail.evaluation.stats.performance import at_volatility

Figure = dict[str, Any]

COLOURS = ("c1", "c2", "c3", "c4", "c5", "c6")
"""Of results, in order; they begin again after six."""

BASELINES: Mapping[str, tuple[str, str, bool]] = {
    "buy_and_hold": ("@reference", "solid", True),
    "equal_weight": ("@b1", "dash", True),
    "momentum": ("@b2", "dot", True),
    "volatility_target": ("@b3", "dashdot", True),
    "random": ("@b4", "dot", True),
    "flat": ("@reference", "dot", False),
    "clairvoyant": ("@b4", "longdash", False),
}
"""Colour and stroke of a baseline, and whether it is visible at first."""

MOST_MARKERS = 600
"""Fills that are drawn of one symbol."""

_BINS = 81
_DATE = {"type": "date"}


def colour_of(place: int) -> str:
    """Return the name of a result's colour."""
    return COLOURS[place % len(COLOURS)]


def trace(line: Line, name: str, colour: str, *, width: float = 1.4, **more: object) -> Figure:
    """Return a series as a line."""
    stroke: Figure = {"color": colour, "width": width}
    for key in ("dash", "shape"):
        if key in more:
            stroke[key] = more.pop(key)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": line.ts.astype(np.float64),
        "y": line.values.astype(np.float32),
        "line": stroke,
        **more,
    }


def curve(ts: Times, values: Array, name: str, colour: str, **more: Any) -> Figure:  # noqa: ANN401 - whatever a line knows
    """Return a series as a line, thinned."""
    return trace(thinned(ts, values), name, colour, **more)


def stacked(top: Figure, bottom: Figure, *, share: float = 0.34) -> Figure:
    """Return a layout of two charts over one axis of time."""
    return {
        "xaxis": {**_DATE, "anchor": "y2"},
        "yaxis": {**top, "domain": [share + 0.05, 1.0]},
        "yaxis2": {**bottom, "domain": [0.0, share]},
    }


def percent_axis(title: str, *, hover: str = "+.2%") -> Figure:
    """Return an axis of percentages; `hover` is the format of the value under the cursor."""
    return {"title": {"text": title}, "tickformat": ".2~%", "hoverformat": hover}


def verdict_figure(results: Sequence[Result]) -> Figure:
    """Return equity and drawdown of the results, with two baselines at their volatility.

    Buy and hold, and of the other simple baselines the one with the higher Sharpe ratio, both
    scaled to the volatility of the first result (`stats.performance.at_volatility`).
    """
    data = []
    for name, ts, equity in compared_baselines(results):
        colour, dash, _ = BASELINES.get(name, ("@reference", "dash", True))
        scaled = at_volatility(returns_of(equity), results[0].returns)
        worth = np.concatenate(([1.0], np.cumprod(1.0 + scaled)))
        own = {"legendgroup": name, "dash": dash}
        title = f"{name.replace('_', ' ')}, same volatility"
        data.append(curve(ts, worth - 1.0, title, colour, width=1.3, **own))
        below = {**own, "yaxis": "y2", "showlegend": False}
        data.append(curve(ts, drawdown(worth), title, colour, width=1.0, **below))
    return {"data": [*data, *_agents(results)], "layout": _equity_layout()}


def compared_baselines(results: Sequence[Result]) -> list[tuple[str, Times, Array]]:
    """Return buy and hold and the best other simple baseline by its Sharpe ratio."""
    known = {name: (name, ts, equity) for name, ts, equity in baselines_of(results)}
    ratios = {
        name: float(per_bar_sharpe(returns_of(known[name][2])))
        for name in ("momentum", "volatility_target", "equal_weight")
        if name in known
    }
    moving = [name for name, ratio in ratios.items() if np.isfinite(ratio)]
    best = max(moving, key=lambda name: ratios[name], default=None)
    return [known[name] for name in ("buy_and_hold", best) if name in known]


def equity_figure(results: Sequence[Result]) -> Figure:
    """Return the equity curves with the drawdown below them, and those of the baselines."""
    data = []
    for name, ts, equity in baselines_of(results):
        colour, dash, shown = BASELINES.get(name, ("@reference", "dash", True))
        own = {"legendgroup": name, "dash": dash, "visible": True if shown else "legendonly"}
        title = name.replace("_", " ")
        data.append(curve(ts, growth(equity) - 1.0, title, colour, width=1.2, **own))
        if name == "buy_and_hold":
            below = {**own, "yaxis": "y2", "showlegend": False}
            data.append(curve(ts, drawdown(equity), title, colour, width=1.0, **below))
    return {"data": [*data, *_agents(results)], "layout": _equity_layout()}


def _agents(results: Sequence[Result]) -> list[Figure]:
    """Return the lines of the results: equity above, drawdown below."""
    data = []
    for place, result in enumerate(results):
        colour, group = f"@{colour_of(place)}", f"result {place}"
        name = result.name if len(results) > 1 else "agent"
        own = {"legendgroup": group}
        fill = {"fill": "tozeroy", "fillcolor": f"{colour}/0.14"}
        data.append(curve(result.ts, growth(result.total) - 1.0, name, colour, width=2.4, **own))
        below = {**own, "yaxis": "y2", "showlegend": False, **fill}
        data.append(curve(result.ts, drawdown(result.total), name, colour, width=1.2, **below))
    return data


def _equity_layout() -> Figure:
    return stacked(percent_axis("return"), percent_axis("drawdown", hover=".2%"))


def baselines_of(results: Sequence[Result]) -> list[tuple[str, Times, Array]]:
    """Return name, times and equity of the baselines of the first result that has any."""
    for result in results:
        table = result.tables.get("baselines.parquet")
        if table is not None:
            ts = np.asarray(table["ts"].to_numpy(), np.int64)
            names = [name for name in BASELINES if name in table.column_names]
            names += [name for name in table.column_names if name not in ("ts", *names)]
            return [(name, ts, column(table, name)) for name in names]
    return []


def sleeves_figure(result: Result) -> Figure:
    """Return the equity curve of each account, or of each seed."""
    names = [name for name in result.equity.column_names if name not in ("ts", "total")]
    data = [
        curve(result.ts, growth(column(result.equity, name)) - 1.0, name, f"@{colour_of(place)}")
        for place, name in enumerate(names)
    ]
    axis = percent_axis("return since the start")
    return {"data": data, "layout": {"xaxis": dict(_DATE), "yaxis": axis}}


def position_figure(results: Sequence[Result], symbol: str) -> Figure:
    """Return price and fills of a symbol, and below them what share of equity was held."""
    data: list[Figure] = []
    alone = len(results) == 1
    for place, result in enumerate(results):
        held = position_of(result, symbol)
        colour = f"@{colour_of(place)}"
        prefix = "" if alone else f"{result.name}: "
        if not any(drawn["name"] == "price" for drawn in data):
            data += _price(result, symbol, held)
        data += _fills(result, symbol, prefix, None if alone else colour)
        name = f"{prefix}weight"
        more: Figure = {"yaxis": "y2", "shape": "vh", "width": 1.4 if alone else 1.0}
        if alone:
            more |= {"fill": "tozeroy", "fillcolor": f"{colour}/0.14"}
        data.append(curve(held.ts, held.weight, name, colour, **more))
    top = {"title": {"text": "price"}, "hoverformat": ",.6~g"}
    low = percent_axis("weight", hover="+.1%")
    layout = stacked(top, low)
    # marks at the ends would make room for themselves
    starts, ends = [result.ts[0] for result in results], [result.ts[-1] for result in results]
    span = [int(min(starts)), int(max(ends))]
    return {"data": data, "layout": {**layout, "xaxis": {**layout["xaxis"], "range": span}}}


def _price(result: Result, symbol: str, held: Position) -> list[Figure]:
    """Return the price of a symbol where it is known: at closes, or else from fill to fill."""
    if np.isfinite(held.price).any():
        return [curve(held.ts, held.price, "price", "@reference", width=1.2)]
    if not result.trades.num_rows:
        return []
    fills = result.trades.take(np.flatnonzero(texts(result.trades, "symbol") == symbol))
    fills = fills.sort_by("ts")
    ts = np.asarray(fills["ts"].to_numpy(), np.int64)
    line = curve(ts, column(fills, "price"), "price", "@reference", width=1.0, dash="dot")
    return [line] if len(ts) else []


def _fills(result: Result, symbol: str, prefix: str, colour: str | None) -> list[Figure]:
    """Return buys and sales of a symbol as marks, the largest where there are very many."""
    if not result.trades.num_rows:
        return []
    chosen = chosen_fills(result, symbol)
    trades = result.trades.take(chosen)
    sides = texts(trades, "side")
    traces = []
    for side, sign in (("buy", "triangle-up"), ("sell", "triangle-down")):
        own = sides == side
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"{prefix}{side}",
                "x": column(trades, "ts")[own],
                "y": column(trades, "price")[own].astype(np.float32),
                "marker": {
                    "symbol": sign,
                    "size": 7 if len(chosen) < 150 else 5,
                    "color": colour or f"@{side}",
                    "opacity": 0.8,
                },
            }
        )
    return traces


def chosen_fills(result: Result, symbol: str) -> NDArray[np.intp]:
    """Return places of the fills of a symbol that are drawn, in order of time."""
    own = np.flatnonzero(texts(result.trades, "symbol") == symbol)
    if len(own) > MOST_MARKERS:
        trades = result.trades.take(own)
        size = np.abs(column(trades, "quantity") * column(trades, "price"))
        own = np.sort(own[np.argsort(-size, kind="stable")[:MOST_MARKERS]])
    return own


def returns_figure(results: Sequence[Result]) -> Figure:
    """Return the histogram of bar returns with value at risk and CVaR; zeros are left out."""
    series = [result.returns[result.returns != 0.0] for result in results]
    edges = bin_edges(np.concatenate(series))
    alone = len(results) == 1
    data, shapes, notes = [], [], []
    for place, (result, values) in enumerate(zip(results, series, strict=True)):
        colour = f"@{colour_of(place)}"
        name = "realised" if alone else result.name
        data.append(histogram(shares(values, edges), edges, name, colour, bars=alone))
        for metric, words, dash in (("value_at_risk", "VaR", "dot"), ("cvar", "CVaR", "solid")):
            statement = result.metrics.get(metric)
            level = None if statement is None else statement.value
            if level is not None:
                mark = "@bad" if alone else colour
                shapes.append(upright(level, mark, dash=dash))
                label = f"{words} {level:.2%}"
                side = "left" if words == "VaR" else "right"
                notes.append(caption_at(level, label, mark, row=place, side=side))
    layout = {
        "xaxis": percent_axis("return of one bar"),
        "yaxis": percent_axis("share of bars", hover=".2%"),
        "shapes": shapes,
        "annotations": notes,
        "showlegend": not alone,
    }
    return {"data": data, "layout": layout}


def bin_edges(values: Array) -> Array:
    """Return edges of equal cells over all but the outermost thousandth of the values."""
    low, high = np.quantile(values, (0.0005, 0.9995)) if len(values) else (-1.0, 1.0)
    reach = max(float(high - low), 1e-9)
    return np.linspace(low - 0.02 * reach, high + 0.02 * reach, _BINS)


def shares(values: Array, edges: Array, weight: Array | None = None) -> Array:
    """Return the share of values in each cell; those beyond the ends count in the outer cells."""
    inside = np.clip(values, edges[0], edges[-1])
    count, _ = np.histogram(inside, edges, weights=weight)
    return np.asarray(count / max(float(count.sum()), 1e-300), np.float64)


def histogram(height: Array, edges: Array, name: str, colour: str, *, bars: bool) -> Figure:
    """Return a histogram as bars, or as an outline that others can lie over."""
    middle = (edges[:-1] + edges[1:]) / 2.0
    heights = height.astype(np.float32)
    if bars:
        return {
            "type": "bar",
            "name": name,
            "x": middle,
            "y": heights,
            "marker": {"color": f"{colour}/0.55", "line": {"width": 0}},
        }
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": middle,
        "y": heights,
        "line": {"color": colour, "width": 1.6, "shape": "hvh"},
        "fill": "tozeroy",
        "fillcolor": f"{colour}/0.10",
    }


def upright(at: float, colour: str, *, dash: str = "solid") -> Figure:
    """Return a line from the bottom of a chart to its top."""
    return {
        "type": "line",
        "x0": at,
        "x1": at,
        "y0": 0,
        "y1": 1,
        "yref": "paper",
        "line": {"color": colour, "width": 1.4, "dash": dash},
    }


def caption_at(at: float, text: str, colour: str, *, row: int = 0, side: str = "right") -> Figure:
    """Return words beside an upright line; rows keep several of them apart."""
    return {
        "x": at,
        "row": row,
        "xanchor": side,
        "text": text,
        "font": {"color": colour},
    }


def rolling_figure(results: Sequence[Result], risks: Sequence[Rolling | None]) -> Figure:
    """Return rolling volatility, and rolling CVaR below it, of each result that has enough bars."""
    data = []
    for place, (result, risk) in enumerate(zip(results, risks, strict=True)):
        if risk is None:
            continue
        colour, group = f"@{colour_of(place)}", f"result {place}"
        name = result.name if len(results) > 1 else "agent"
        more: Figure = {"legendgroup": group}
        data.append(trace(Line(risk.ts, risk.volatility), name, colour, width=1.8, **more))
        more |= {"yaxis": "y2", "showlegend": False}
        data.append(trace(Line(risk.ts, risk.cvar), name, colour, width=1.8, **more))
    top = percent_axis("volatility a year", hover=".1%")
    low = percent_axis("CVaR of a bar", hover=".3%")
    layout = stacked(top, low, share=0.46)
    return {"data": data, "layout": {**layout, "showlegend": len(results) > 1}}


def rolling_ratio_figure(results: Sequence[Result], risks: Sequence[Rolling | None]) -> Figure:
    """Return the rolling Sharpe ratio, and rolling beta on buy and hold below it where known."""
    data, betas = [], False
    for place, (result, risk) in enumerate(zip(results, risks, strict=True)):
        if risk is None:
            continue
        colour, group = f"@{colour_of(place)}", f"result {place}"
        name = result.name if len(results) > 1 else "agent"
        more: Figure = {"legendgroup": group}
        data.append(trace(Line(risk.ts, risk.sharpe), name, colour, width=1.8, **more))
        if risk.beta is not None:
            betas = True
            more |= {"yaxis": "y2", "showlegend": False}
            data.append(trace(Line(risk.ts, risk.beta), name, colour, width=1.8, **more))
    top: Figure = {"title": {"text": "Sharpe ratio"}, "hoverformat": ".2f"}
    low: Figure = {"title": {"text": "beta"}, "hoverformat": ".2f"}
    alone: Figure = {"xaxis": dict(_DATE), "yaxis": top}
    layout = stacked(top, low, share=0.46) if betas else alone
    return {"data": data, "layout": {**layout, "showlegend": len(results) > 1}}


def capacity_figure(rows: Sequence[Mapping[str, float]]) -> Figure:
    """Return the return of the same decisions against the size of the account."""
    line = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "total return",
        "x": [row["capital"] for row in rows],
        "y": [row["total_return"] for row in rows],
        "line": {"color": "@c1", "width": 1.8},
        "marker": {"size": 6},
    }
    layout = {
        "xaxis": {"type": "log", "title": {"text": "capital"}, "hoverformat": ",.4~g"},
        "yaxis": percent_axis("total return"),
        "showlegend": False,
    }
    return {"data": [line], "layout": layout}
