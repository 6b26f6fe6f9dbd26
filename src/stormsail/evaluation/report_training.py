"""Training curves of a report, with alarms as lines.

Each figure is one of plotly.js as plain data, for `report_style.chart`.
"""

from collections.abc import Sequence

import numpy as np

from stormsail.evaluation.report_charts import Figure, colour_of, upright
from stormsail.evaluation.report_results import TrainingRun, column, number
from stormsail.evaluation.report_series import thinned

CURVES: tuple[tuple[str, str, tuple[tuple[str, str, str], ...]], ...] = (
    ("Return of an episode", "", (
        ("rollout/episode_return_mean", "mean", "c1"),
        ("rollout/episode_return_p05", "worst 5 %", "c2"),
    )),
    ("Score of the looks at unseen bars", "", (
        ("validation/score", "score", "c1"),
        ("validation/best_score", "best so far", "c3"),
    )),
    ("Tail of episodes", "", (
        ("train/cvar_empirical", "CVaR", "c1"),
        ("config/cvar_limit", "limit", "c5"),
        ("train/cvar_predicted_at_reset", "predicted", "c2"),
    )),
    ("Multiplier of the limit", "", (("train/cvar_lambda", "multiplier", "c4"),)),
    ("Divergence of an update", "", (
        ("train/approx_kl", "KL", "c1"),
        ("train/kl_target", "target", "c6"),
    )),
    ("Explained variance", ".2f", (("train/explained_variance", "explained", "c3"),)),
    ("Entropy", "", (("train/policy_entropy", "entropy", "c4"),)),
    ("Value loss", "", (("train/value_loss", "loss", "c2"),)),
    ("Gradients before the clip", "", (("train/grad_norm_pre_clip_max", "largest", "c5"),)),
    ("Costs of a step, share of equity", "", (
        ("rollout/reward_costs_fraction_mean", "mean", "c2"),
    )),
)  # fmt: skip
"""Title, form, and metrics of each training curve: name, words, colour."""

MOST_ALARM_LINES = 40
_FEW = 30  # points that are marked one by one, since lines alone would hide them


def training_figures(runs: Sequence[TrainingRun]) -> list[tuple[str, Figure]]:
    """Return title and figure of each curve of which a run has a number, alarms as lines."""
    found = []
    for title, form, metrics in CURVES:
        data = [
            trace
            for place, run in enumerate(runs)
            for trace in _learned(run, place, metrics, len(runs))
        ]
        if not data:
            continue
        layout: Figure = {
            "xaxis": {"title": {"text": "update"}},
            "yaxis": {"hoverformat": form or ".4~g"},
            "shapes": [mark for run in runs for mark in _alarm_lines(run)],
            "showlegend": len(data) > 1,
        }
        found.append((title, {"data": data, "layout": layout}))
    return found


def _learned(
    run: TrainingRun, place: int, metrics: tuple[tuple[str, str, str], ...], runs: int
) -> list[Figure]:
    updates = np.arange(run.metrics.num_rows, dtype=np.int64)
    found = []
    for number_of, (metric, words, colour) in enumerate(metrics):
        if metric not in run.metrics.column_names:
            continue
        values = column(run.metrics, metric)
        known = np.isfinite(values)
        if not known.any():
            continue
        line = thinned(updates[known], values[known])
        own = f"@{colour}" if runs == 1 else f"@{colour_of(place)}"
        found.append(
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
    return found


def _alarm_lines(run: TrainingRun) -> list[Figure]:
    places = sorted({number(one.get("update")) or 0.0 for one in run.alarms()})
    return [
        {**upright(at, "@bad/0.45", dash="dot"), "layer": "below"}
        for at in places[:MOST_ALARM_LINES]
    ]
