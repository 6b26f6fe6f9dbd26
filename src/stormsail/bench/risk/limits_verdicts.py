"""Judgement of `bench limits`: a line for each agent and baseline, claims, a chart."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from stormsail.bench.chart import COLOURS, Dots, Line, Panel, draw, ticks
from stormsail.bench.risk.limits import AT_ITS_CVAR, FREE, LIMIT, Result, Row
from stormsail.bench.seeds import NORMAL_95, Seeds
from stormsail.bench.verdicts import Verdict

_NOTHING_HELD = 0.0
_Shape = Literal["circle", "square", "triangle", "cross"]
_SHAPES: dict[str, tuple[str, _Shape]] = {
    LIMIT: (COLOURS[0], "square"),
    FREE: (COLOURS[-1], "circle"),
    f"{FREE}, {AT_ITS_CVAR}": (COLOURS[-1], "cross"),
    f"volatility, {AT_ITS_CVAR}": (COLOURS[1], "triangle"),
    f"hold, {AT_ITS_CVAR}": (COLOURS[2], "circle"),
}


class Key(NamedTuple):
    """Runs that differ by their seed alone."""

    horizon: str
    limit: float
    steps: int
    changes: tuple[str, ...]
    greedy: bool

    @classmethod
    def of(cls, row: Row) -> "Key":
        """Return the key of a row."""
        return cls(row.horizon, row.limit, row.steps, row.changes, row.greedy)

    def __str__(self) -> str:
        actions = "likeliest" if self.greedy else "drawn"
        parts = (f"limit {self.limit:g} a {self.horizon}", f"{self.steps:,} steps", *self.changes)
        return f"{', '.join(parts)}, {actions} actions"


@dataclass(frozen=True)
class Summary:
    """All seeds of one agent or baseline."""

    name: str
    seeds: int
    mean: Seeds
    cvar: Seeds
    cvar_low: float
    """Lower end of the 95 % interval of one seed's CVaR, mean over seeds."""
    cvar_high: float
    apart_cvar: float
    """Of the episodes that do not overlap, mean over seeds."""
    apart_low: float
    apart_high: float
    exposure: float
    turnover: float
    invested: float
    trading: int
    """Seeds that hold more than next to nothing."""
    kept: int
    """Seeds whose estimate keeps the limit."""
    proven: int
    """Seeds whose whole interval does."""
    not_broken: int
    """Seeds whose interval does not prove it broken."""


def groups(rows: Sequence[Row]) -> dict[Key, list[Row]]:
    """Return rows by what they have in common, in order of seeds."""
    by_key: dict[Key, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (Key.of(row), row.seed)):
        by_key.setdefault(Key.of(row), []).append(row)
    return by_key


def summaries(rows: Sequence[Row]) -> list[Summary]:
    """Return a line for each agent and baseline of runs with one key."""
    limit = rows[0].limit
    return [
        _summary([row.result(result.name) for row in rows], limit) for result in rows[0].results
    ]


def _summary(results: Sequence[Result], limit: float) -> Summary:
    first = results[0]
    width = first.cvar_high - first.cvar_low

    def mean(field: str) -> float:
        return statistics.fmean(getattr(result, field) for result in results)

    return Summary(
        name=first.name,
        seeds=len(results),
        mean=Seeds([x.mean for x in results], shown="half", alone=first.mean_half / NORMAL_95),
        cvar=Seeds(
            [x.cvar for x in results], shown="half", spec=".3f", alone=width / 2.0 / NORMAL_95
        ),
        cvar_low=mean("cvar_low"),
        cvar_high=mean("cvar_high"),
        apart_cvar=mean("apart_cvar"),
        apart_low=mean("apart_low"),
        apart_high=mean("apart_high"),
        exposure=mean("exposure"),
        turnover=mean("turnover"),
        invested=mean("invested"),
        trading=sum(result.trades for result in results),
        kept=sum(result.is_kept(limit) for result in results),
        proven=sum(result.is_proven(limit) for result in results),
        not_broken=sum(result.is_not_broken(limit) for result in results),
    )


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """Return the verdicts on runs with one key: is the limit kept, and what does it cost?"""
    key = Key.of(rows[0])
    baselines = [x.name for x in rows[0].results if x.name.endswith(f", {AT_ITS_CVAR}")]
    return [_kept(key, rows), *(_compared(key, name, rows) for name in baselines)]


def _kept(key: Key, rows: Sequence[Row]) -> Verdict:
    results = [row.result(LIMIT) for row in rows]
    limit, count = key.limit, len(rows)
    good = sum(result.is_kept(limit) and result.trades for result in results)
    proven = sum(result.is_proven(limit) for result in results)
    not_broken = sum(result.is_not_broken(limit) for result in results)
    free = sum(row.result(FREE).is_kept(limit) for row in rows)
    return Verdict(
        claim=f"{key}: kept on unseen bars in 4 of 5 seeds, by agents that trade",
        measured=f"by the estimate in {sum(result.is_kept(limit) for result in results)} of "
        f"{count}, proven in {proven}, not proven broken in {not_broken}; "
        f"{sum(result.trades for result in results)} trade; without a limit {free} keep it",
        passed=5 * good >= 4 * count,
    )


def _compared(key: Key, name: str, rows: Sequence[Row]) -> Verdict:
    results = [row.result(name) for row in rows]
    gain = Seeds([x.gain for x in results], shown="half", alone=results[0].gain_half / NORMAL_95)
    better = sum(result.gain - result.gain_half > 0.0 for result in results)
    worse = sum(result.gain + result.gain_half < 0.0 for result in results)
    beyond = sum(not result.is_equal for result in results)
    further = f"; no multiplier gives that CVaR in {beyond}" if beyond else ""
    return Verdict(
        claim=f"{key}: against {name}",
        measured=f"mean return {gain.mean:+.4f} ± {gain.half:.4f} over seeds; by the interval of a "
        f"seed better in {better}, worse in {worse} of {len(rows)}{further}",
        passed=None,
    )


def chart(rows: Sequence[Row]) -> str:
    """Return mean against CVaR as SVG, a panel for each key, a dot for each seed."""
    panels = [_panel(key, own) for key, own in groups(rows).items()]
    return draw(panels, note="every dot is one seed, on bars that nobody trained on")


def _panel(key: Key, rows: Sequence[Row]) -> Panel:
    points = {
        name: tuple((row.result(name).cvar, row.result(name).mean) for row in rows)
        for name in _SHAPES
    }
    every = [point for own in points.values() for point in own]
    across = ticks([_NOTHING_HELD, key.limit, *(cvar for cvar, _ in every)])
    up = ticks([_NOTHING_HELD, *(mean for _, mean in every)])
    return Panel(
        title=str(key),
        horizontal=f"CVaR: mean of the worst 5 % of {key.horizon}s, log growth",
        vertical=f"mean log growth of a {key.horizon}",
        lines=(Line("limit on CVaR", ((key.limit, up[0]), (key.limit, up[-1])), COLOURS[3]),),
        vertical_range=(up[0], up[-1]),
        horizontal_ticks=across,
        vertical_ticks=up,
        dots=tuple(
            Dots(name if name != LIMIT else "agent under the limit", points[name], colour, shape)
            for name, (colour, shape) in _SHAPES.items()
        ),
    )
