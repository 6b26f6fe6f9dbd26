"""Section of a report about attacks: return and CVaR against the radius of forged observations."""

from collections.abc import Sequence

from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.report.charts import Figure, colour_of
from stormsail.evaluation.report.html import NONE, chart, escape, note, section, table
from stormsail.evaluation.saved import Document, SavedAttack, items, mapping, number

_QUANTITIES = {"mean": "mean return", "cvar": "CVaR"}


def attack_section(attacks: Sequence[SavedAttack]) -> str:
    """Return curves and tables of robustness; empty where no attack was passed."""
    body = ""
    for place, attack in enumerate(attacks):
        body += f"<h3>{escape(attack.name)}</h3>" if len(attacks) > 1 else ""
        for field, title in _QUANTITIES.items():
            picture = attack_figure(attack, field, title)
            body += chart(f"attack-{field}-{place}", picture, height=320)
        body += _table(attack) + note(_settings(attack))
    lead = (
        "The agent is shown forged observations, and its memory is the one it has under attack. "
        "Changes are against the same episodes without an attack; brackets are 95 % intervals."
    )
    return section("robustness", "Robustness", body, lead=lead) if body else ""


def attack_figure(attack: SavedAttack, field: str, title: str) -> Figure:
    """Return one quantity against the radius, a line for each attack that begins at the clean one.

    Args:
        attack: a saved curve.
        field: `mean` or `cvar`.
        title: of the vertical axis.
    """
    points = [mapping(point) for point in items(attack.document.get("points"))]
    clean, attacked = points[0], points[1:]
    data: list[Figure] = []
    for place, name in enumerate(dict.fromkeys(str(point.get("attack")) for point in attacked)):
        own = [clean, *(point for point in attacked if point.get("attack") == name)]
        estimates = [mapping(point.get(field)) for point in own]
        heights = [number(each.get("value")) for each in estimates]
        above, below = (_distances(estimates, end) for end in ("high", "low"))
        colour = f"@{colour_of(place)}"
        bars = {"type": "data", "symmetric": False, "array": above, "arrayminus": below}
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": name,
                "x": [number(point.get("epsilon")) for point in own],
                "y": heights,
                "line": {"color": colour, "width": 1.4},
                "marker": {"size": 6},
                "error_y": {**bars, "thickness": 1, "width": 2, "color": colour},
            }
        )
    layout = {
        "xaxis": {"title": {"text": "radius of the perturbation"}},
        "yaxis": {"title": {"text": title}},
        "showlegend": True,
    }
    return {"data": data, "layout": layout}


def _distances(estimates: Sequence[Document], end: str) -> list[float]:
    """Return how far one end of each interval is from its estimate; 0 where it has none."""
    distances = []
    for each in estimates:
        value, bound = number(each.get("value")), number(each.get(end))
        distances.append(0.0 if value is None or bound is None else abs(bound - value))
    return distances


def _table(attack: SavedAttack) -> str:
    fields = ("mean", "cvar", "mean_change", "cvar_change")
    rows = []
    for point in (mapping(each) for each in items(attack.document.get("points"))):
        cells = [_cell(point.get(field)) for field in fields]
        radius, moved = number(point.get("epsilon")), number(point.get("changed"))
        shares = [f"{radius or 0.0:g}", *cells, NONE if moved is None else f"{moved:.1%}"]
        rows.append([str(point.get("attack")), *shares])
    titles = ["attack", "radius", "mean return", "CVaR", "change of the mean", "of CVaR", "moved"]
    return table(titles, rows)


def _cell(value: JsonValue) -> str:
    estimate = mapping(value)
    middle, low, high = (number(estimate.get(key)) for key in ("value", "low", "high"))
    if middle is None:
        return NONE
    return (
        f"{middle:.4g}" if low is None or high is None else f"{middle:.4g} [{low:.4g}, {high:.4g}]"
    )


def _settings(attack: SavedAttack) -> str:
    settings = mapping(attack.document.get("settings"))
    columns = ", ".join(str(name) for name in items(settings.get("columns")))
    return (
        f"{settings.get('episodes')} episodes of {settings.get('task')}, {settings.get('policy')} "
        f"policy, {settings.get('norm')} ball in standard deviations of a column, CVaR of the "
        f"worst {settings.get('alpha')}. Forged: {columns}."
    )
