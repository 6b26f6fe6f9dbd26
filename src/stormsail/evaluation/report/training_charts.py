"""Training curves of a report, with alarms as vertical lines.

Each function returns a figure as plain data, in the form of `charts.py`, for `html.chart`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stormsail.evaluation.report.charts import Figure, colour_of, upright
from stormsail.evaluation.report.series import thinned
from stormsail.evaluation.saved import TrainingRun, column, number
from stormsail.monitors.alarm_rules import OUTCOMES


class Curve(NamedTuple):
    """A training curve."""

    title: str
    form: str
    metrics: tuple[tuple[str, str, str], ...]
    """Name, words and colour of each."""
    quantity: int | None = None
    """Only of runs whose `config/cvar_quantity` this is; None takes all."""


_TAIL = (("train/cvar_empirical", "CVaR", "c1"), ("config/cvar_limit", "limit", "c5"))
_EPISODE = (*_TAIL, ("train/cvar_predicted_at_reset", "predicted, discounted", "c2"))
# critics predict returns of episodes: beside any other quantity that line would mislead
_TAILS = tuple(
    Curve(f"Tail of {words}", "", _EPISODE if words == OUTCOMES[-1] else _TAIL, place)
    for place, words in enumerate(OUTCOMES)
)

CURVES = (
    Curve("Return of an episode", "", (
        ("rollout/episode_return_mean", "mean", "c1"),
        ("rollout/episode_return_p05", "worst 5 %", "c2"),
    )),
    Curve("Evaluation score", "", (
        ("validation/score", "score", "c1"),
        ("validation/best_score", "best so far", "c3"),
    )),
    *_TAILS,
    Curve("Multiplier of the limit", "", (("train/cvar_lambda", "multiplier", "c4"),)),
    Curve("Divergence of an update", "", (
        ("train/approx_kl", "KL", "c1"),
        ("train/kl_target", "target", "c6"),
    )),
    Curve("Explained variance", ".2f", (("train/explained_variance", "explained", "c3"),)),
    Curve("Entropy", "", (("train/policy_entropy", "entropy", "c4"),)),
    Curve("Value loss", "", (("train/value_loss", "loss", "c2"),)),
    Curve("Gradients before the clip", "", (("train/grad_norm_pre_clip_max", "largest", "c5"),)),
    Curve("Costs of a step, share of equity", "", (
        ("rollout/reward_costs_fraction_mean", "mean", "c2"),
    )),
)  # fmt: skip
"""What is drawn, in this order."""

MOST_ALARM_LINES = 40
_FEW = 30  # points that are marked one by one, since lines alone would hide them


def training_figures(runs: Sequence[TrainingRun]) -> list[tuple[str, Figure]]:
    """Return title and figure of each curve of which a run has a number, with alarms.

    Runs that watch the tails of different quantities get a figure for each quantity.
    """
    figures = []
    for curve in CURVES:
        drawn = [
            (place, run)
            for place, run in enumerate(runs)
            if curve.quantity is None or curve.quantity == _quantity(run)
        ]
        data = [
            trace
            for place, run in drawn
            for trace in _learned(run, place, curve.metrics, len(runs))
        ]
        if not data:
            continue
        layout: Figure = {
            "xaxis": {"title": {"text": "update"}},
            "yaxis": {"hoverformat": curve.form or ".4~g"},
            "shapes": [mark for _, run in drawn for mark in _alarm_lines(run)],
            "showlegend": len(data) > 1,
        }
        figures.append((curve.title, {"data": data, "layout": layout}))
    return figures


def _quantity(run: TrainingRun) -> float | None:
    """Return the quantity whose tail a run limits, as a place in `OUTCOMES`; None without one."""
    if "config/cvar_quantity" not in run.metrics.column_names:
        return None
    values = column(run.metrics, "config/cvar_quantity")
    known = values[np.isfinite(values)]
    return float(known[-1]) if len(known) else None


def _learned(
    run: TrainingRun, place: int, metrics: tuple[tuple[str, str, str], ...], runs: int
) -> list[Figure]:
    updates = np.arange(run.metrics.num_rows, dtype=np.int64)
    traces = []
    for number_of, (metric, words, colour) in enumerate(metrics):
        if metric not in run.metrics.column_names:
            continue
        values = column(run.metrics, metric)
        known = np.isfinite(values)
        if not known.any():
            continue
        line = thinned(updates[known], values[known])
        own = f"@{colour}" if runs == 1 else f"@{colour_of(place)}"
        traces.append(
            {
                "type": "scatter",
                "mode": "lines" if len(line.ts) > _FEW else "lines+markers",
                "name": words if runs == 1 else f"{run.name}: {words}",
                "x": line.ts.astype(np.float64),
                "y": line.values,
                "line": {
                    "color": own,
                    "width": 1.6,
                    "dash": ("solid", "dash", "dot")[number_of % 3] if runs > 1 else "solid",
                },
            }
        )
    return traces


def _alarm_lines(run: TrainingRun) -> list[Figure]:
    places = sorted({number(alarm.get("update")) or 0.0 for alarm in run.alarms()})
    return [
        {**upright(at, "@bad/0.45", dash="dot"), "layer": "below"}
        for at in places[:MOST_ALARM_LINES]
    ]
