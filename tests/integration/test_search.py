"""`stormsail search` with real trainings: kills, the trial ledger, processes, the page."""

import contextlib
import json

import pytest
from typer.testing import CliRunner

from search_lab import EPOCHS, RATE, Killed, refused
from stormsail.algorithms import TrainConfig, search
from stormsail.algorithms.population.config import RunFile
from stormsail.algorithms.sweep.checks import check_seal
from stormsail.algorithms.sweep.trial import saved_steps
from stormsail.algorithms.trainer import Trainer
from stormsail.cli.main import app
from stormsail.core.errors import StormsailError
from stormsail.evaluation.searches import read_search
from stormsail.evaluation.stats.trials import VALIDATION, TrialLedger
from training_lab import image, run_all, small

OVER = {RATE: "log:1e-4:5e-3", EPOCHS: "int:1:2"}
RULES = {"rungs": 1, "reduction_factor": 2, "seed": 1}


def plan():
    every = {"checkpoint__every_updates": 1, "validation__every_updates": 2}
    base = small("pendulum", ppo__total_steps=4 * 32, **every)
    return RunFile.from_mapping({**base.model_dump(), "search": RULES})


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Return a search of three trials that nobody interrupted."""
    return search(plan(), budget=3, out=tmp_path_factory.mktemp("runs") / "s", over=OVER)


def images(root):
    """Return the bytes of all trials that two equal searches have in common."""
    return {place.name: image(place) for place in sorted(root.glob("trial-*"))}


def test_every_trial_counts_in_the_ledger_and_the_best_one_trains_as_it_is(done, tmp_path):
    assert {trial.state for trial in done.trials} == {"finished", "pruned"}
    ledger = TrialLedger(done.path.parent / "trials.jsonl")
    assert ledger.count() == len(done.counted) == 3
    ends = {line.name: line for line in ledger.read().trials if line.status != "started"}
    for trial in done.trials:
        line = ends[f"s/trial-{trial.number:04d}"]
        if trial.state == "pruned":
            assert (line.status, line.extra["reason"]) == ("stopped", "pruned after 64 steps")
            assert saved_steps(done.path, trial.number) == 64
        else:
            assert line.status == "finished"
            assert saved_steps(done.path, trial.number) == 128
    config = TrainConfig.load(done.best_config)
    assert config.ppo.learning_rate == done.best.values[RATE]
    run_all(config, tmp_path / "again")
    assert image(tmp_path / "again") == image(done.best_folder)


def test_a_search_that_is_killed_in_a_training_goes_on_with_the_same_bits(
    done, tmp_path, monkeypatch, caplog
):
    real, updates = Trainer.advance, []

    def mortal(self):
        real(self)
        updates.append(self.ppo.update_count)
        if len(updates) in (1, 6):
            raise Killed

    out = tmp_path / "s"
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "advance", mortal)
        for _ in range(2):
            with pytest.raises(Killed):
                search(plan(), budget=3, out=out, over=OVER)
    with caplog.at_level("INFO", logger="stormsail.search"):
        again = search(plan(), budget=3, out=out, over=OVER)
    assert "goes on from its checkpoint of" in caplog.text
    assert again.trials == done.trials
    assert images(out) == images(done.path)
    assert (out / "search.json").read_bytes() == (done.path / "search.json").read_bytes()
    assert TrialLedger(tmp_path / "trials.jsonl").count() == 3


def test_a_trial_without_a_checkpoint_is_trained_again_and_says_so(tmp_path, monkeypatch, caplog):
    def dead(*_, **__):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "__init__", dead)
        with pytest.raises(Killed):
            search(plan(), budget=1, out=tmp_path / "s", over=OVER)
    with caplog.at_level("INFO", logger="stormsail.search"):
        assert search(plan(), budget=1, out=tmp_path / "s", over=OVER).best.number == 0
    assert "Trial 0 is trained again: it has no checkpoint yet." in caplog.text


def test_a_trial_that_fails_unseen_is_none_and_one_that_was_seen_counts(tmp_path, monkeypatch):
    real = Trainer.run

    def broken(self, *, until):
        if self.ppo.update_count == until - 2 == broken.after:
            raise ValueError("broken")
        return real(self, until=until)

    def failed(after):
        broken.after, place = after, tmp_path / str(after)
        with monkeypatch.context() as patch, contextlib.suppress(StormsailError):
            patch.setattr(Trainer, "run", broken)
            search(plan(), budget=1, out=place / "s", over=OVER)
        trials = read_search(place / "s").trials
        assert "failed" in {trial.state for trial in trials}
        return trials, TrialLedger(place / "trials.jsonl").count()

    trials, count = failed(0)
    assert (len(trials), count) == (3, 0)  # given up after three in a row
    trials, count = failed(2)
    assert all(trial.scores for trial in trials)
    assert count == len(trials)


def test_processes_train_side_by_side_with_the_bits_of_one(done, tmp_path):
    rules = {**RULES, "rungs": 0}
    file = RunFile.from_mapping({**plan().training().model_dump(), "search": rules})
    two = search(file, budget=2, out=tmp_path / "two" / "s", over=OVER, jobs=2)
    assert [trial.state for trial in two.trials] == ["finished", "finished"]
    assert two.trials[0].values == done.trials[0].values
    assert image(two.path / "trial-0000") == image(done.path / "trial-0000")
    assert TrialLedger(tmp_path / "two" / "trials.jsonl").count() == 2
    assert (two.path / "logs").is_dir()


def test_the_command_shows_the_trials_and_writes_the_page(done, tmp_path):
    file = tmp_path / "tiny.toml"
    file.write_text(plan().to_toml())
    words = [word for path, text in OVER.items() for word in ("--over", f"{path}={text}")]
    # the folder of the finished search: nothing is trained again
    call = ["search", str(file), "--budget", "3", *words, "--out", str(done.path)]
    shown = CliRunner().invoke(app, call)
    assert shown.exit_code == 0, shown.output
    for text in ("best 3 of 3 trials", "3 trials, each in the trial ledger", "best.toml", "page:"):
        assert text in shown.output
    read = json.loads(CliRunner().invoke(app, [*call, "--json", "--quiet"]).stdout)
    assert (read["best_trial"], read["counted"]) == (done.best.number, 3)
    assert read["best"] == str(done.best_config)
    known = CliRunner().invoke(app, ["show", str(done.path)])
    assert known.exit_code == 0, known.output
    assert f"next: stormsail train {done.best_config}" in known.output
    page = (done.path / "report.html").read_text()
    assert 'class="parallel"' in page
    out = tmp_path / "page.html"
    again = CliRunner().invoke(app, ["report", str(done.path), "--out", str(out)])
    assert again.exit_code == 0, again.output
    assert out.read_text() == page


@pytest.mark.refusal
def test_bars_that_a_validation_has_sealed_are_refused(tmp_path):
    base = small("market")
    ledger = TrialLedger(tmp_path / "trials.jsonl")
    check_seal(base, ledger)
    options = {"config_hash": "", "data_hash": "", "sharpe_per_bar": None, "bars": 0}
    seal = {"span": [0, 1 << 50], "symbols": [], "run_key": "k"}
    ledger.record(VALIDATION, "judged", status="started", extra=seal, **options)
    error = refused(check_seal, base, ledger)
    assert "sealed as the final test span of `judged`" in str(error)
    assert "Set `task.data.end` to 1970-01-01T00:00:00Z or earlier." in str(error)
    check_seal(small("cartpole"), ledger)


def test_the_fitness_of_a_trial_is_that_of_a_population(tmp_path):
    base = small("market", ppo__total_steps=32, validation__every_updates=0)
    file = RunFile.from_mapping({**base.model_dump(), "search": {"rungs": 0}})
    done = search(file, budget=1, out=tmp_path / "s", over={RATE: "log:1e-4:5e-3"})
    saved = json.loads((tmp_path / "s" / "search.json").read_text())
    metrics = saved["trials"][0]["metrics"]
    assert {"sharpe", "score", "cvar", "breach"} == set(metrics)  # the limit of this task counts
    assert done.best is not None
