"""Charts of lines and dots as SVG text: no library, the same bytes for the same numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

WIDTH, HEIGHT = 460, 300
"""Of one panel, in pixels."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 34, 44
_LEGEND_ROW = 20
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#000000")
"""Of Okabe and Ito: distinct also for colour-blind readers."""


@dataclass(frozen=True)
class Line:
    """One line of a panel."""

    name: str
    points: tuple[tuple[float, float], ...]
    colour: str
    dashed: bool = False


@dataclass(frozen=True)
class Dots:
    """Points of a panel that no line joins."""

    name: str
    points: tuple[tuple[float, float], ...]
    colour: str
    shape: Literal["circle", "square", "triangle", "cross"] = "circle"


@dataclass(frozen=True)
class Intervals:
    """Vertical bars of a panel, each from a lower to an upper end."""

    ends: tuple[tuple[float, float, float], ...]
    """Place, lower end and upper end of each."""
    colour: str


@dataclass(frozen=True)
class Panel:
    """One chart; its axes are linear, or logarithmic where it says so."""

    title: str
    horizontal: str
    vertical: str
    lines: tuple[Line, ...]
    vertical_range: tuple[float, float]
    horizontal_ticks: tuple[float, ...]
    vertical_ticks: tuple[float, ...]
    logarithmic: bool = False
    """Both axes; every number must be greater than 0 then."""
    dots: tuple[Dots, ...] = ()
    """Drawn over the lines."""
    intervals: tuple[Intervals, ...] = ()
    """Drawn beneath them."""


def smoothed(values: Sequence[float], width: int) -> list[float]:
    """Return the mean of each value and as many as there are of the `width` - 1 before it."""
    windows = [values[max(0, place + 1 - width) : place + 1] for place in range(len(values))]
    return [sum(window) / len(window) for window in windows]


def ticks(values: Sequence[float], *, most: int = 8) -> tuple[float, ...]:
    """Return round numbers, evenly spaced, at most so many, that enclose all values."""
    low, high = min(values), max(values)
    if low == high:
        low, high = low - 0.5, high + 0.5
    for power in range(math.floor(math.log10((high - low) / most)), 400):
        for digit in (1, 2, 5):
            step = digit * 10.0**power
            first, last = math.floor(low / step), math.ceil(high / step)
            if last - first < most:
                return tuple(
                    round(step * place, max(0, -power)) for place in range(first, last + 1)
                )
    return (low, high)


def draw(panels: Sequence[Panel], *, note: str) -> str:
    """Return the panels side by side above one legend and a note.

    Lines and dots of the first panel name the legend; those of the same name look alike in all of
    them.
    """
    legend: list[Line | Dots] = [*panels[0].lines, *panels[0].dots]
    columns = 2 if len(panels) == 1 else 4
    rows = math.ceil(len(legend) / columns)
    width = WIDTH * len(panels)
    height = HEIGHT + rows * _LEGEND_ROW + 26
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for place, panel in enumerate(panels):
        parts += [f'<g transform="translate({place * WIDTH} 0)">', *_panel(panel), "</g>"]
    parts += _legend(legend, width, columns)
    parts += [_text(_LEFT, height - 8, note, size=11), "</svg>"]
    return "\n".join(parts) + "\n"


def _panel(panel: Panel) -> list[str]:
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
    parts = [_text((_LEFT + right) / 2, 20, panel.title, anchor="middle", size=14)]
    for tick in panel.horizontal_ticks:
        across = _across(panel, tick)
        parts.append(_segment(across, _TOP, across, bottom))
        parts.append(_text(across, bottom + 16, f"{tick:g}", anchor="middle"))
    for tick in panel.vertical_ticks:
        down = _down(panel, tick)
        parts.append(_segment(_LEFT, down, right, down))
        parts.append(_text(_LEFT - 6, down + 4, f"{tick:g}", anchor="end"))
    parts.append(_text((_LEFT + right) / 2, HEIGHT - 10, panel.horizontal, anchor="middle"))
    middle = (_TOP + bottom) / 2
    turned = _text(0, 0, panel.vertical, anchor="middle")
    parts.append(f'<g transform="translate(14 {middle:.1f}) rotate(-90)">{turned}</g>')
    for bars in panel.intervals:
        for x, low, high in bars.ends:
            across, bottom_end, top_end = _across(panel, x), _down(panel, low), _down(panel, high)
            path = f"M{across:.1f} {bottom_end:.1f} L{across:.1f} {top_end:.1f}"
            parts.append(f'<path d="{path}" stroke="{bars.colour}" stroke-width="1"/>')
    for line in panel.lines:
        places = " ".join(f"{_across(panel, x):.1f},{_down(panel, y):.1f}" for x, y in line.points)
        parts.append(f'<polyline points="{places}" fill="none" {_stroke(line)}/>')
    for dots in panel.dots:
        parts += [_dot(dots, _across(panel, x), _down(panel, y)) for x, y in dots.points]
    return parts


def _dot(dots: Dots, across: float, down: float) -> str:
    left, right, top, bottom = across - 3.5, across + 3.5, down - 3.5, down + 3.5
    fill = f'fill="{dots.colour}" fill-opacity="0.8"'
    if dots.shape == "circle":
        return f'<circle cx="{across:.1f}" cy="{down:.1f}" r="3.5" {fill}/>'
    if dots.shape == "square":
        return f'<rect x="{left:.1f}" y="{top:.1f}" width="7" height="7" {fill}/>'
    if dots.shape == "triangle":
        corners = f"{left:.1f},{bottom:.1f} {right:.1f},{bottom:.1f} {across:.1f},{top:.1f}"
        return f'<polygon points="{corners}" {fill}/>'
    path = f"M{left:.1f} {top:.1f} L{right:.1f} {bottom:.1f} M{left:.1f} {bottom:.1f}"
    return f'<path d="{path} L{right:.1f} {top:.1f}" stroke="{dots.colour}" stroke-width="1.8"/>'


def _across(panel: Panel, value: float) -> float:
    ends = panel.horizontal_ticks[0], panel.horizontal_ticks[-1]
    return _LEFT + _share(panel, value, ends) * (WIDTH - _RIGHT - _LEFT)


def _down(panel: Panel, value: float) -> float:
    return HEIGHT - _BOTTOM - _share(panel, value, panel.vertical_range) * (HEIGHT - _BOTTOM - _TOP)


def _share(panel: Panel, value: float, ends: tuple[float, float]) -> float:
    """Return how far along its axis a value lies; one outside stands at the end."""
    low, high = ends
    if panel.logarithmic:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return min(1.0, max(0.0, (value - low) / (high - low)))


def _legend(entries: Sequence[Line | Dots], width: int, columns: int) -> list[str]:
    parts = []
    column = (width - _LEFT) / columns
    for place, entry in enumerate(entries):
        left = _LEFT + (place % columns) * column
        down = HEIGHT + (place // columns) * _LEGEND_ROW + 6
        if isinstance(entry, Dots):
            parts.append(_dot(entry, left + 13.0, down))
        else:
            parts.append(f'<path d="M{left:.1f} {down} h26" fill="none" {_stroke(entry)}/>')
        parts.append(_text(left + 32, down + 4, entry.name))
    return parts


def _stroke(line: Line) -> str:
    dashes = ' stroke-dasharray="5 3"' if line.dashed else ""
    return f'stroke="{line.colour}" stroke-width="1.8"{dashes}'


def _segment(left: float, top: float, right: float, bottom: float) -> str:
    return f'<path d="M{left:.1f} {top:.1f} L{right:.1f} {bottom:.1f}" stroke="#dddddd"/>'


def _text(left: float, down: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return (
        f'<text x="{left:.1f}" y="{down:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="#222222">{escape(text)}</text>'
    )
