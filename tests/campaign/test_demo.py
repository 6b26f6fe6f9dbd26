"""`make demo` as a newcomer meets it, from an empty folder to the page."""

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from stormsail.evaluation.compare.compare import compare_results
from stormsail.evaluation.saved import read_result
from stormsail.evaluation.stats.figures import returns_of
from stormsail.evaluation.stats.performance import window_cvar
from stormsail.evaluation.stats.trials import TrialLedger

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
MINUTES = 8.0
WEEK = 168
LIMIT = -0.1
TRIALS = 8
"""Two trainings, two folds for each of two validations, and the validations themselves."""

LAST = 10
"""Updates at the end of a training whose mean counts."""

TOLERANCE = {
    "total return": 0.25,
    "Sharpe ratio": 0.5,
    "max drawdown": 0.08,
    "mean exposure": 0.15,
    "CVaR of the worst 5 % of weeks": 0.03,
}
"""How far a figure of the README may lie from that of a run, as the README says: on another
processor sums have other last bits, and a training goes on from them."""


def started(place):
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "demo.py")],
        cwd=place,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def at_the_end(run, metric):
    known = [
        value
        for value in pq.read_table(run / "metrics.parquet").column(metric).to_pylist()
        if value is not None and value == value
    ]
    return sum(known[-LAST:]) / LAST


def figures_of(place):
    """Return the figures of the README's table, of the free and of the limited account."""
    compared = compare_results([place / "judged-free", place / "judged-limited"])
    rows = {name: [] for name in TOLERANCE}
    for entry in compared.entries:
        found = entry.figures
        rows["total return"].append(found["total_return"].value)
        rows["Sharpe ratio"].append(found["sharpe"].value)
        rows["max drawdown"].append(found["max_drawdown"].value)
        rows["mean exposure"].append(found["exposure"].value)
        returns = returns_of(entry.curve.y)
        cvar = window_cvar(returns, window=WEEK, alpha=0.05)
        rows["CVaR of the worst 5 % of weeks"].append(cvar)
    return rows


def assert_the_readme_says(figures):
    for name, values in figures.items():
        (cells,) = re.findall(rf"^\| {re.escape(name)}[^|]* \| (.*?) \| (.*?) \|$", README, re.M)
        for cell, value in zip(cells, values, strict=True):
            number = float(cell.replace("−", "-").rstrip(" %")) / (100.0 if "%" in cell else 1.0)
            assert number == pytest.approx(value, abs=TOLERANCE[name]), name


@pytest.mark.campaign
def test_the_demonstration_shows_what_a_limit_does_in_eight_minutes(tmp_path):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    before = processor_seconds()
    done = started(tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    # one thread at a time: what a processor works is what a free machine takes
    assert processor_seconds() - before < 60.0 * MINUTES
    place = tmp_path / "runs" / "demo"
    free, limited = place / "free", place / "limited"
    tails = [at_the_end(run, "train/cvar_empirical") for run in (free, limited)]
    assert tails[0] < LIMIT < tails[1] < 0.2 * LIMIT
    for name in ("free", "limited"):
        found = read_result(place / f"judged-{name}")
        assert found.document["verdict"]["decision"] in ("promote", "not proven", "reject")
    assert TrialLedger(place / "trials.jsonl").count() == TRIALS
    assert_the_readme_says(figures_of(place))
    page = (place / "report.html").read_text()
    assert "judged-free" in page
    assert "judged-limited" in page

    again = started(tmp_path)
    assert again.returncode == 0, again.stderr[-4000:]
    assert again.stdout.count("exists and is kept") == 2
    assert (place / "report.html").read_text() == page
