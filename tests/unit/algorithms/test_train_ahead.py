"""Trainings of a validation side by side: the same runs, and an end that loses nothing."""

import os
import signal

import pytest

from stormsail.algorithms.fit import Interrupted, fitter
from stormsail.algorithms.population.jobs import Job
from stormsail.algorithms.run.folder import open_run
from stormsail.algorithms.run.tasks import binding
from stormsail.algorithms.train_ahead import carry_out, train_ahead
from stormsail.core.errors import ArtifactError, InvariantError, RangeError
from stormsail.evaluation.walk_forward.config import ValidationConfig
from stormsail.market.splits import Span
from training_lab import small

HOUR = 3_600_000
START = 1_609_718_400_000
SPANS = (Span(START, START + 400 * HOUR), Span(START, START + 500 * HOUR))


def fit_in(place, **changes):
    config = small("market", task__market__levels=(-1.0, 1.0), **changes)
    return fitter(config, workspace=place, name="judged")


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.glob("fold-*/best/*"))
    }


def test_runs_are_those_that_the_validation_would_have_trained(tmp_path):
    alone, together = fit_in(tmp_path / "alone"), fit_in(tmp_path / "together")
    wanted = [(span, seed) for span in SPANS for seed in (0, 1)]
    for span, seed in wanted:
        alone(ValidationConfig(), span, seed)
    reports = []
    train_ahead(together, wanted, jobs=3, on_progress=reports.append)
    ours, theirs = (files(tmp_path / way / "judged") for way in ("together", "alone"))
    assert len(theirs) >= 4
    assert ours == theirs
    steps = small("market").ppo.total_steps
    assert tuple(reports[-1]) == (4, 4, 4 * steps, 4 * steps)
    assert [report.steps for report in reports] == sorted(report.steps for report in reports)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_of_them_and_the_same_call_goes_on(tmp_path, number):
    wanted = [(SPANS[0], 0), (SPANS[0], 1)]
    begun = []

    def interrupt(progress):
        begun.append(progress)
        if progress.steps and len(begun) < 1000:
            begun.extend([progress] * 1000)
            os.kill(os.getpid(), number)

    fit = fit_in(tmp_path, ppo__total_steps=200_000)
    with pytest.raises(Interrupted) as caught:
        train_ahead(fit, wanted, jobs=2, on_progress=interrupt)
    assert caught.value.signal == number
    assert begun[-1].done == 0
    # nobody trains on: both folders can be locked, and go on in this process
    config, out = fit.run_of(*wanted[0])
    assert out == tmp_path / "judged" / "fold-0-seed-0"
    with open_run(out, config, binding(config)):
        pass


def test_what_a_training_raises_is_left_to_the_validation(tmp_path):
    fit = fit_in(tmp_path)
    _, out = fit.run_of(SPANS[0], 0)
    out.mkdir(parents=True)
    (out / "foreign").write_text("not a run")
    train_ahead(fit, [(SPANS[0], 0), (SPANS[0], 1)], jobs=2)
    assert (tmp_path / "judged" / "fold-0-seed-1" / "manifest.json").exists()
    with pytest.raises(ArtifactError, match="foreign"):
        fit(ValidationConfig(), SPANS[0], 0)


@pytest.mark.refusal
def test_jobs_and_works_must_make_sense(tmp_path):
    with pytest.raises(RangeError, match="`jobs` must be at least 1; found 0"):
        train_ahead(fit_in(tmp_path), [(SPANS[0], 0)], jobs=0)
    with pytest.raises(InvariantError, match="a worker must be told what to train"):
        carry_out(Job(0, 0, tmp_path, 0))
