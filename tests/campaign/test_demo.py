"""`make demo` as a newcomer meets it, from an empty folder to the page."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from stormsail.evaluation.saved import read_result
from stormsail.evaluation.stats.trials import TrialLedger

ROOT = Path(__file__).resolve().parents[2]
MINUTES = 8.0
LIMIT = -0.1
TRIALS = 8
"""Two trainings, two folds for each of two validations, and the validations themselves."""

LAST = 10
"""Updates at the end of a training whose mean counts."""


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
    means = [at_the_end(run, "rollout/episode_return_mean") for run in (free, limited)]
    assert tails[0] < 1.5 * LIMIT < tails[1] < 0.5 * LIMIT
    assert means[0] > means[1] > 0.0
    for name in ("free", "limited"):
        found = read_result(place / f"judged-{name}")
        assert found.document["verdict"]["decision"] in ("promote", "not proven", "reject")
    assert TrialLedger(place / "trials.jsonl").count() == TRIALS
    page = (place / "report.html").read_text()
    assert "judged-free" in page
    assert "judged-limited" in page

    again = started(tmp_path)
    assert again.returncode == 0, again.stderr[-4000:]
    assert again.stdout.count("exists and is kept") == 2
    assert (place / "report.html").read_text() == page
