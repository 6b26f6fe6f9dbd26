"""Section of a report about populations: members, who copied whom, which values won."""

import itertools
import math
from collections.abc import Iterable, Sequence

from stormsail.evaluation.populations import SavedPopulation, Value
from stormsail.evaluation.report.charts import Figure
from stormsail.evaluation.report.html import NONE, Cell, chart, escape, note, section, table

MOST_MEMBERS = 64
"""Members that are drawn; of a larger population the best ones and the ancestors of the best."""

_LEFT, _TOP, _ROW, _RADIUS = 92, 30, 24, 6
_NARROW, _WIDE, _ACROSS = 26, 64, 900
"""Pixels: margins, distance of two members, radius of a dot; least and largest distance of two
rounds, and the width that they share."""

_FAINT = 0.12
"""How much of its colour the dot of the worst member has."""


def population_section(populations: Sequence[SavedPopulation]) -> str:
    """Return members, lineage and values of populations; empty where none was passed."""
    body = ""
    for place, population in enumerate(populations):
        body += f"<h3>{escape(population.name)}</h3>" if len(populations) > 1 else ""
        body += note(_summary(population)) + _members(population) + _lineage(population)
        body += _winners(population) + '<div class="pair">'
        for index, path in enumerate(population.search):
            figure = values_figure(population, path)
            body += chart(f"population-{place}-{index}", figure, height=280)
        body += "</div>"
    lead = (
        "Members train side by side; after a round the worst ones copy better ones and try other "
        "values. Fitness is smoothed over rounds. Values are those of the configuration: of a "
        "learning rate the first point of its decay."
    )
    return section("population", "Population", body, lead=lead) if body else ""


def lineage_svg(population: SavedPopulation) -> str:
    """Return who copied whom: a line for each member over rounds, an arrow for each copy.

    A dot is the end of a round. The better its place in the round, the more colour it has; that of
    an unknown fitness is empty. The thick line goes through those who trained the best member's
    weights.
    """
    rounds, shown = len(population.rounds), drawn_members(population)
    step = min(_WIDE, max(_NARROW, _ACROSS // rounds))
    rows = {member: _TOP + _ROW * place for place, member in enumerate(shown)}
    width, height = _LEFT + step * rounds, _TOP + _ROW * len(shown)
    parts = [
        f'<svg class="lineage" role="img" aria-label="who copied whom" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}">'
    ]
    for place in range(0, rounds, max(1, rounds // 20)):
        x = _LEFT + step * place
        parts.append(f'<text class="round" x="{x}" y="12">{place + 1}</text>')
    for member, y in rows.items():
        points = " ".join(f"{_LEFT + step * place},{y}" for place in range(rounds))
        parts.append(f'<text class="name" x="4" y="{y + 4}">member {member:02d}</text>')
        parts.append(f'<polyline class="member" points="{points}"/>')
    if population.best is not None:
        line = population.ancestors(population.best)
        points = " ".join(f"{_LEFT + step * k},{rows[who]}" for k, who in enumerate(line))
        parts.append(f'<polyline class="best" points="{points}"/>')
    for copy in population.copies():
        if copy.source in rows and copy.member in rows:
            start = (_LEFT + step * (copy.round - 1), rows[copy.source])
            end = (_LEFT + step * copy.round, rows[copy.member])
            words = f"member {copy.member:02d} copies {copy.source:02d} before round "
            parts.append(
                f'<path class="copy" d="{_arrow(start, end)}"><title>{words}{copy.round + 1}'
                "</title></path>"
            )
    for place in range(rounds):
        parts += _dots(population, place, _LEFT + step * place, rows)
    return "".join(parts) + "</svg>"


def values_figure(population: SavedPopulation, path: str) -> Figure:
    """Return the values of a searched setting over rounds, those behind the best member thick."""
    numbers = list(range(1, len(population.rounds) + 1))
    histories = {
        f"member {member:02d}": [round_.values[member][path] for round_ in population.rounds]
        for member in drawn_members(population)
    }
    data: list[Figure] = [
        _line(name, numbers, values, {"color": "@reference/0.6", "width": 1.0})
        for name, values in histories.items()
    ]
    if population.best is not None:
        won = values_of_line(population, path, population.best)
        style = {"color": "@c1", "width": 3.0}
        data.append(_line(f"line of member {population.best:02d}", numbers, won, style))
    is_number = all(_is_number(value) for line in histories.values() for value in line)
    kind = ("log" if population.search[path] else "linear") if is_number else "category"
    layout = {
        "xaxis": {"title": {"text": "round"}},
        "yaxis": {"title": {"text": path}, "type": kind},
        "showlegend": False,
    }
    return {"data": data, "layout": layout}


def values_of_line(population: SavedPopulation, path: str, member: int) -> list[Value]:
    """Return the value of a setting with which a member's weights were trained, round by round."""
    line = population.ancestors(member)
    return [round_.values[who][path] for round_, who in zip(population.rounds, line, strict=True)]


def drawn_members(population: SavedPopulation) -> list[int]:
    """Return the members that are drawn, by number; of a large population not all."""
    order = population.ranking(-1)
    line = [] if population.best is None else population.ancestors(population.best)
    chosen = list(dict.fromkeys([*line, *order]))
    return sorted(chosen[: max(MOST_MEMBERS, len(set(line)))])


def _dots(population: SavedPopulation, place: int, x: int, rows: dict[int, int]) -> Iterable[str]:
    round_, order = population.rounds[place], population.ranking(place)
    known = sum(map(math.isfinite, round_.fitness))
    for member, y in rows.items():
        fitness, rank = round_.fitness[member], order.index(member)
        share = 0.0  # nothing is known
        if math.isfinite(fitness):
            share = 1.0 - (1.0 - _FAINT) * rank / max(1, known - 1)
        values = ", ".join(f"{path} {_shown(v)}" for path, v in round_.values[member].items())
        words = f"member {member:02d}, round {place + 1}: fitness {_fitness(fitness)}; {values}"
        yield (
            f'<circle class="fitness" cx="{x}" cy="{y}" r="{_RADIUS}" fill-opacity="{share:.3f}">'
            f"<title>{escape(words)}</title></circle>"
        )


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> str:
    """Return the path of an arrow that ends at the edge of the dot at its end."""
    length = math.hypot(end[0] - start[0], end[1] - start[1])
    along = ((end[0] - start[0]) / length, (end[1] - start[1]) / length)
    tip = (end[0] - along[0] * _RADIUS, end[1] - along[1] * _RADIUS)
    back = (tip[0] - 7 * along[0], tip[1] - 7 * along[1])
    sides = [(back[0] - k * along[1], back[1] + k * along[0]) for k in (-3.5, 3.5)]
    head = " L".join(f"{x:.1f},{y:.1f}" for x, y in (sides[0], tip, sides[1]))
    return f"M{start[0]},{start[1]} L{tip[0]:.1f},{tip[1]:.1f} M{head}"


def _line(name: str, x: list[int], y: list[Value], style: Figure) -> Figure:
    values = [value if _is_number(value) else _shown(value) for value in y]
    return {
        "type": "scatter", "mode": "lines", "name": name, "x": x, "y": values,
        "line": {**style, "shape": "hv"},
    }  # fmt: skip


def _summary(population: SavedPopulation) -> str:
    done = f"{population.size} members, {len(population.rounds)} rounds, "
    done += f"{len(population.copies())} copies. "
    best = population.best
    if best is None:
        return done + "No member has a fitness."
    last = population.rounds[-1]
    values = ", ".join(f"`{path}` {_shown(value)}" for path, value in last.values[best].items())
    return f"{done}Best: member {best:02d} with fitness {_fitness(last.fitness[best])}; {values}."


def _members(population: SavedPopulation) -> str:
    last, copied = population.rounds[-1], dict[int, str]()
    for copy in population.copies():
        copied[copy.member] = f"{copy.source:02d} before round {copy.round + 1}"
    rows: list[list[Cell]] = [
        [
            f"{member:02d}",
            _fitness(last.fitness[member]),
            _fitness(last.raw[member]),
            last.updates[member],
            *(_shown(last.values[member][path]) for path in population.search),
            copied.get(member, NONE),
        ]
        for member in population.ranking(-1)
    ]
    titles = ["member", "fitness", "of the last round", "updates", *population.search]
    kinds = ["good" if population.best is not None else ""]
    return table([*titles, "last copied"], rows, kinds=kinds, classes="nowrap")


def _lineage(population: SavedPopulation) -> str:
    words = (
        "Rounds from left to right. An arrow is a copy. The more colour a dot has, the better was "
        "its place in the round; an empty one has no known fitness. The thick line is where the "
        "weights of the best member were trained."
    )
    shown = len(drawn_members(population))
    if shown < population.size:
        words += f" {shown} of {population.size} members are drawn."
    figure = f'<div class="scroll">{lineage_svg(population)}</div>'
    return f"<figure>{figure}<figcaption>{escape(words)}</figcaption></figure>"


def _winners(population: SavedPopulation) -> str:
    """Return a table of the values at the start and now, and on the way to the best member."""
    rows = []
    for path in population.search:
        first, last = (
            _range([values[path] for values in population.rounds[place].values])
            for place in (0, -1)
        )
        won = NONE
        if population.best is not None:
            line = values_of_line(population, path, population.best)
            steps = [
                line[0],
                *(new for old, new in itertools.pairwise(line) if old != new),
            ]
            won = " → ".join(map(_shown, steps))
        rows.append([path, first, last, won])
    return table(["setting", "first round", "last round", "values behind the best"], rows)


def _range(values: Sequence[Value]) -> str:
    numbers = [value for value in values if _is_number(value)]
    if len(numbers) < len(values):
        return ", ".join(sorted({_shown(value) for value in values}))
    return f"{_shown(min(numbers))} to {_shown(max(numbers))}"


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Value) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _fitness(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "unknown"
