"""Charts of `docs/risk.md`: learned return distributions, and how a loss uses up a risk budget."""

import math
from collections.abc import Sequence
from typing import Literal

from scipy.special import ndtr
from scipy.stats import norm

from stormsail.bench.chart import COLOURS, Dots, Line, Panel, draw
from stormsail.bench.risk.tails import ALPHA, Tail

TRUE = "#000000"
_SHAPES: tuple[Literal["circle", "square", "triangle", "cross"], ...] = (
    "circle", "square", "triangle", "cross",
)  # fmt: skip
"""Of distributions, in the order in which they come; so are their colours."""

_STEPS = 40
"""Bars of the drawn episode."""
_LEVEL = -0.1
"""Value at risk of the drawn episodes, in log equity."""
_BAR = 0.01
"""Deviation of one bar's return there."""
_LOSS_AT, _LOSS = 16, -0.06
"""Bar of the one loss, and its size."""


def distributions(tails: Sequence[Tail]) -> str:
    """Return predicted distributions of the normal chain beside the true one, as SVG.

    Whole and in the worst tenth. Of each case the first seed that has its values is drawn, of at
    most four cases; there must be one of the world `chain`. Rows may have been kept without them.
    """
    chosen: dict[str, Tail] = {}
    for tail in tails:
        if tail.world == "chain" and tail.values and len(chosen) < len(_SHAPES):
            chosen.setdefault(tail.case, tail)
    spread = -next(iter(chosen.values())).true * ALPHA / float(norm.pdf(norm.ppf(ALPHA)))
    cases = list(chosen.values())
    whole = _panel("The whole distribution", cases, spread, (-20.0, 20.0), 1.0)
    worst = _panel("Its worst tenth", cases, spread, (-25.0, -5.0), 0.1)
    note = "Discounted returns on a chain of independent noise, gamma 0.99; one seed."
    return draw((whole, worst), note=note)


def _panel(
    title: str, tails: list[Tail], spread: float, ends: tuple[float, float], top: float
) -> Panel:
    low, high = ends
    across = [low + (high - low) * place / 100 for place in range(101)]
    exact = tuple((x, float(ndtr(x / spread))) for x in across if ndtr(x / spread) <= top)
    dots = []
    for tail, shape, colour in zip(tails, _SHAPES, COLOURS, strict=False):
        every = zip(tail.values, tail.levels, strict=True)
        points = tuple((x, y) for x, y in every if low <= x <= high and y <= top)
        if top == 1.0:  # all of them would hide the line
            points = points[::3]
        dots.append(Dots(tail.case, points, colour, shape))
    return Panel(
        title=title,
        horizontal="return",
        vertical="share of returns below",
        lines=(Line("true distribution", exact, TRUE),),
        vertical_range=(0.0, top),
        horizontal_ticks=tuple(low + (high - low) * place / 4 for place in range(5)),
        vertical_ticks=tuple(round(top * place / 5, 3) for place in range(6)),
        dots=tuple(dots),
    )


def budget() -> str:
    """Return how one loss uses up what an episode may lose, for bars of independent normal returns.

    To the left the return so far, to the right minus the expected shortfall below the value at
    risk, over alpha: the value whose changes are the risk advantage.
    """
    so_far = [_LOSS if step >= _LOSS_AT else 0.0 for step in range(_STEPS + 1)]
    bars = tuple(float(place) for place in range(0, _STEPS + 1, 10))
    panels = (
        Panel(
            title="What the episode may still lose",
            horizontal="bar",
            vertical="log equity since the start",
            lines=(
                Line("an episode with one loss", tuple(enumerate(so_far)), COLOURS[1]),
                Line("without it", ((0.0, 0.0), (float(_STEPS), 0.0)), COLOURS[0], dashed=True),
                Line("value at risk", ((0.0, _LEVEL), (float(_STEPS), _LEVEL)), TRUE),
            ),
            vertical_range=(-0.12, 0.02),
            horizontal_ticks=bars,
            vertical_ticks=(-0.12, -0.1, -0.08, -0.06, -0.04, -0.02, 0.0, 0.02),
        ),
        Panel(
            title="What that is worth to the tail",
            horizontal="bar",
            vertical="- expected shortfall / alpha",
            lines=(
                Line("an episode with one loss", _worth(so_far), COLOURS[1]),
                Line("without it", _worth([0.0] * len(so_far)), COLOURS[0], dashed=True),
            ),
            vertical_range=(-0.12, 0.0),
            horizontal_ticks=bars,
            vertical_ticks=(-0.12, -0.1, -0.08, -0.06, -0.04, -0.02, 0.0),
        ),
    )
    note = f"Bars of mean 0 and deviation {_BAR:g}; all bars but one earn 0. Alpha {ALPHA:g}."
    return draw(panels, note=note)


def _worth(so_far: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Return minus the expected shortfall over alpha at each bar, given what came before."""
    return tuple(
        (step, -shortfall(_LEVEL - total, _BAR * math.sqrt(_STEPS - step)) / ALPHA)
        for step, total in enumerate(so_far)
    )


def shortfall(budget: float, spread: float) -> float:
    """Return E[max(b - Z, 0)] of a normal Z of mean 0: what episodes lose beyond their budget."""
    if spread == 0.0:
        return max(budget, 0.0)
    ratio = budget / spread
    return spread * (ratio * float(ndtr(ratio)) + float(norm.pdf(ratio)))
