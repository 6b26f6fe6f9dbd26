"""An episode as a picture or a line of text: price, position and equity, bar by bar."""

import math
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stormsail.core.clock import iso
from stormsail.core.errors import ConfigError

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont, ImageFont

WIDTH, HEIGHT = 640, 480

_FINE = 2  # drawn this many times larger and then shrunk, which smooths slanted lines
_LEFT, _RIGHT, _TOP, _BOTTOM, _GAP = 74, 18, 52, 30, 28
_SHARES = (0.42, 0.22, 0.36)  # of the height: price, position, equity
_LETTER = 12

_PAPER, _INK, _GREY, _GRID = (255, 255, 255), (30, 34, 40), (110, 116, 125), (228, 231, 235)
_PRICE, _LONG, _SHORT, _EQUITY = (52, 73, 94), (31, 119, 180), (230, 126, 34), (0, 121, 107)


@dataclass
class Trace:
    """What has happened in an episode so far, one entry a bar from the first decision's on."""

    symbol: str
    bars: int
    """Steps until the episode is truncated."""
    weights_offered: tuple[float, float]
    """Lowest and highest weight that an action can ask for."""
    times_ms: list[int] = field(default_factory=list)
    """Open times, UTC."""
    prices: list[float] = field(default_factory=list)
    """Closes."""
    weights: list[float] = field(default_factory=list)
    """Positions at the close, as signed shares of equity."""
    equities: list[float] = field(default_factory=list)
    """In quote currency, at the close."""

    def add(self, *, time_ms: int, price: float, weight: float, equity: float) -> None:
        """Append a bar."""
        self.times_ms.append(time_ms)
        self.prices.append(price)
        self.weights.append(weight)
        self.equities.append(equity)

    @property
    def growth(self) -> float:
        """Equity over that at the start, less 1."""
        return self.equities[-1] / self.equities[0] - 1.0


def one_line(trace: Trace) -> str:
    """Return where an episode stands."""
    return (
        f"{trace.symbol} {iso(trace.times_ms[-1])} bar {len(trace.prices) - 1}/{trace.bars} "
        f"price {trace.prices[-1]:.6g} position {trace.weights[-1]:+.2f} "
        f"equity {trace.equities[-1]:.2f} ({trace.growth:+.2%})"
    )


class _Frame(NamedTuple):
    """One of the three panels: a rectangle in pixels and the numbers at its edges."""

    top: float
    bottom: float
    low: float
    high: float
    bars: int

    def x(self, bar: float) -> float:
        width = WIDTH - _LEFT - _RIGHT
        return _FINE * (_LEFT + width * min(bar / max(self.bars, 1), 1.0))

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return _FINE * (self.bottom - (self.bottom - self.top) * min(max(share, 0.0), 1.0))


def draw(trace: Trace) -> NDArray[np.uint8]:
    """Return a picture of the episode so far, uint8 [480, 640, 3].

    The time axis spans the whole episode, so that pictures of one episode make a film.

    Raises:
        ConfigError: if Pillow is not installed.
    """
    image, drawing, font = _pillow()
    canvas = image.new("RGB", (WIDTH * _FINE, HEIGHT * _FINE), _PAPER)
    pen = _Pen(drawing.Draw(canvas), font.load_default(_LETTER * _FINE))
    price, position, equity = _frames(trace)

    pen.axes(price, "price")
    pen.line(price, trace.prices, _PRICE)
    pen.axes(position, "position")
    pen.blocks(position, trace.weights)
    pen.axes(equity, "equity")
    pen.level(equity, trace.equities[0])
    pen.line(equity, trace.equities, _EQUITY)
    pen.bars(equity)
    pen.text(_LEFT, 8, f"{trace.symbol}   {iso(trace.times_ms[-1])}", _INK)
    stand = f"{trace.equities[-1]:,.2f} ({trace.growth:+.2%})"
    pen.text(WIDTH - _RIGHT, 8, stand, _EQUITY, anchor="ra")
    small = canvas.resize((WIDTH, HEIGHT), image.Resampling.BOX)
    return np.asarray(small, dtype=np.uint8).copy()


def _pillow() -> tuple[ModuleType, ModuleType, ModuleType]:
    """Return the modules of Pillow, which is needed for pictures only."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise ConfigError(
            "missing-extra",
            wrong="`render` needs the package Pillow",
            found="no such package in this environment",
            remedy="Run `pip install pillow`, or render as `ansi`.",
        ) from error
    return Image, ImageDraw, ImageFont


def _frames(trace: Trace) -> tuple[_Frame, _Frame, _Frame]:
    """Return the places of price, position and equity."""
    height = HEIGHT - _TOP - _BOTTOM - 2 * _GAP
    low, high = trace.weights_offered
    weights = (min(low, *trace.weights, 0.0), max(high, *trace.weights, 0.0))
    spans = (_padded(trace.prices), weights, _padded(trace.equities))
    frames, top = [], float(_TOP)
    for share, (least, most) in zip(_SHARES, spans, strict=True):
        bottom = top + share * height
        frames.append(_Frame(top, bottom, least, most, trace.bars))
        top = bottom + _GAP
    return frames[0], frames[1], frames[2]


def _padded(values: list[float]) -> tuple[float, float]:
    """Return the range of the values with some air, never empty."""
    low, high = min(values), max(values)
    air = 0.08 * (high - low) or 0.01 * abs(high) or 1.0
    return low - air, high + air


def _ticks(low: float, high: float, count: int) -> tuple[list[float], int]:
    """Return about `count` round numbers in a range, and the decimals they need."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1.0, 2.0, 5.0, 10.0) if power * factor >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [index * step + 0.0 for index in range(first, last + 1)], decimals


class _Pen:
    """Lines, blocks and words on a canvas; frames know where numbers lie."""

    def __init__(self, target: "ImageDraw", font: "ImageFont | FreeTypeFont") -> None:
        self._target, self._font = target, font

    def text(
        self, x: float, y: float, words: str, colour: tuple[int, int, int], anchor: str = "la"
    ) -> None:
        place = (x * _FINE, y * _FINE)
        self._target.text(place, words, fill=colour, font=self._font, anchor=anchor)

    def axes(self, frame: _Frame, title: str) -> None:
        """Draw grid lines with their numbers, and the panel's name above them."""
        values, decimals = _ticks(frame.low, frame.high, 4)
        for value in values:
            height = frame.y(value)
            self._target.line(
                (frame.x(0), height, frame.x(frame.bars), height), fill=_GRID, width=_FINE
            )
            words = f"{value:,.{decimals}f}"
            self.text(_LEFT - 8, height / _FINE, words, _GREY, anchor="rm")
        self.text(_LEFT, frame.top - 5, title, _INK, anchor="lb")
        edge = (frame.x(0), _FINE * frame.top, frame.x(0), _FINE * frame.bottom)
        self._target.line(edge, fill=_GREY, width=_FINE)

    def line(self, frame: _Frame, values: list[float], colour: tuple[int, int, int]) -> None:
        """Draw values as a line, its newest point marked."""
        points = [(frame.x(bar), frame.y(value)) for bar, value in enumerate(values)]
        if len(points) > 1:
            self._target.line(points, fill=colour, width=2 * _FINE, joint="curve")
        self._target.circle(points[-1], radius=3 * _FINE, fill=colour)

    def level(self, frame: _Frame, value: float) -> None:
        """Draw a dashed line at a value."""
        height, dash = frame.y(value), 6 * _FINE
        for left in range(int(frame.x(0)), int(frame.x(frame.bars)), 2 * dash):
            self._target.line((left, height, left + dash, height), fill=_GREY, width=_FINE)

    def blocks(self, frame: _Frame, weights: list[float]) -> None:
        """Fill each bar from 0 to its weight: blue above, orange below."""
        zero = frame.y(0.0)
        for bar, weight in enumerate(weights[1:], start=1):
            ends = sorted((zero, frame.y(weight)))
            box = (frame.x(bar - 1), ends[0], frame.x(bar), ends[1])
            if weight:
                self._target.rectangle(box, fill=_LONG if weight > 0.0 else _SHORT)
        self._target.line((frame.x(0), zero, frame.x(frame.bars), zero), fill=_GREY, width=_FINE)

    def bars(self, frame: _Frame) -> None:
        """Number the time axis below a frame."""
        values, _ = _ticks(0.0, max(frame.bars, 1), 6)
        for bar in values:
            if bar == int(bar):
                x = frame.x(bar)
                ends = (x, _FINE * frame.bottom, x, _FINE * (frame.bottom + 4))
                self._target.line(ends, fill=_GREY, width=_FINE)
                self.text(x / _FINE, frame.bottom + 6, f"{bar:.0f}", _GREY, anchor="ma")
        self.text(_LEFT - 8, frame.bottom + 6, "bar", _INK, anchor="ra")
