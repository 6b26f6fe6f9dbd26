"""Training curves: the tail under the name of its quantity, and only beside its like."""

import numpy as np
import pyarrow as pa
import pytest

from stormsail.evaluation.report.training_charts import training_figures
from stormsail.evaluation.saved import TrainingRun


def watched(name="run", *, quantity=2.0, alarm=3):
    """Return a run of four updates; the quantity is the code of `config/cvar_quantity`."""
    columns = {
        "train/cvar_empirical": [np.nan, -0.5, -0.4, -0.3],
        "config/cvar_limit": [-0.2] * 4,
        "train/cvar_predicted_at_reset": [-9.0] * 4,
    }
    if quantity is not None:
        columns["config/cvar_quantity"] = [quantity] * 4
    return TrainingRun(name, pa.table(columns), ({"kind": "alarm", "update": alarm},))


def lines(figure):
    return {trace["name"]: np.asarray(trace["y"]).tolist() for trace in figure["data"]}


def test_the_tail_of_episodes_stands_beside_its_prediction():
    ((title, figure),) = training_figures([watched()])
    assert title == "Tail of episode returns"
    assert lines(figure) == {
        "CVaR": [-0.5, -0.4, -0.3],
        "limit": [-0.2] * 4,
        "predicted, discounted": [-9.0] * 4,
    }


@pytest.mark.spec("X7")
@pytest.mark.parametrize(
    ("quantity", "title"),
    [(0.0, "Tail of single rewards"), (1.0, "Tail of n-step sums")],
)
def test_another_quantity_is_named_and_not_drawn_beside_returns_of_episodes(quantity, title):
    ((shown, figure),) = training_figures([watched(quantity=quantity)])
    assert shown == title
    assert lines(figure) == {"CVaR": [-0.5, -0.4, -0.3], "limit": [-0.2] * 4}


def test_runs_with_different_quantities_are_not_drawn_together():
    runs = [watched("a", quantity=1.0, alarm=1), watched("b", quantity=2.0, alarm=2)]
    figures = training_figures([*runs, watched("c", quantity=1.0, alarm=3)])
    assert [title for title, _ in figures] == ["Tail of n-step sums", "Tail of episode returns"]
    assert list(lines(figures[0][1])) == ["a: CVaR", "a: limit", "c: CVaR", "c: limit"]
    assert list(lines(figures[1][1])) == ["b: CVaR", "b: limit", "b: predicted, discounted"]
    marks = [[mark["x0"] for mark in figure["layout"]["shapes"]] for _, figure in figures]
    assert marks == [[1.0, 3.0], [2.0]]
    colours = {trace["line"]["color"] for trace in figures[0][1]["data"]}
    assert len(colours) == 2  # one a run, as in every other figure


def test_a_tail_of_an_unnamed_quantity_is_not_drawn():
    assert training_figures([watched(quantity=None)]) == []
    assert training_figures([watched(quantity=np.nan)]) == []
