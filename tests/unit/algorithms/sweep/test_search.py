"""A search that trains nobody: proposals, pruning, kills, budgets, refusals.

The driver and Optuna are the real ones; the score of a trial is a formula.
"""

import json
import math
import sys
from dataclasses import replace

import pytest

from search_lab import (
    EPOCHS,
    MEMORY,
    OVER,
    RATE,
    TOTAL,
    Killed,
    base,
    distance,
    planted,
    refused,
    untrained,
)
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.population.config import RunFile
from stormsail.algorithms.sweep import search as search_module
from stormsail.algorithms.sweep import trial as trial_module
from stormsail.algorithms.sweep.study import Study
from stormsail.core.errors import ConfigError, DataError, RangeError
from stormsail.evaluation.searches import read_search


def file(search=None, **changes):
    return RunFile.from_mapping({**base(**changes).model_dump(), "search": search or {}})


@pytest.mark.parametrize(("total", "compiles"), [(8_999_999, False), (9_000_000, True)])
def test_trials_compile_where_the_way_to_the_first_rung_is_long_enough(
    total, compiles, tmp_path, monkeypatch
):
    """A trial is begun anew at each of two rungs, the first at a ninth of its budget."""
    begun = []

    def seen(_, config, *__):
        begun.append(derive(config).compile_update)
        raise DataError("data-defects", wrong="x", found="y", remedy="z")

    monkeypatch.setattr(trial_module, "open_run", seen)
    table = file(ppo__total_steps=total).model_dump()
    del table["compile_update"]
    (tmp_path / trial_module.CONFIG).write_text(RunFile.from_mapping(table).to_toml())
    for values in ({}, {RATE: 1e-3}):
        with pytest.raises(DataError):
            trial_module.advance(trial_module.Segment(0, 0, tmp_path, 32, values=values))
    assert begun == [compiles, compiles]


def test_the_planted_best_value_is_found(monkeypatch, tmp_path):
    search = untrained(monkeypatch)
    plan = file({"startup_trials": 6, "rungs": 0, "seed": 3})
    done = search(plan, budget=26, out=tmp_path / "s", over=OVER)
    assert len(done.counted) == len(done.trials) == 26
    assert done.best.values[MEMORY] == "lstm"
    assert distance(done.best.values) < 0.15  # of four powers of ten; random draws: 0.27
    assert done.best.fitness == max(trial.fitness for trial in done.trials)
    proposed = done.trials[6:]  # as many random draws: 1.1 powers of ten away, 8 with an LSTM
    assert sum(distance(trial.values) for trial in proposed) / len(proposed) < 0.9
    assert sum(trial.values[MEMORY] == "lstm" for trial in proposed) >= 15
    assert set(done.importance) == {RATE, MEMORY}
    assert sum(done.importance.values()) == pytest.approx(1.0)
    saved = read_search(done.path)
    assert saved.best == done.best.number
    assert dict(saved.importance) == pytest.approx(dict(done.importance))


def test_the_smallest_fitness_wins_where_it_is_to_be_small(monkeypatch, tmp_path):
    def cost(job):
        return replace(planted(job), fitness=-planted(job).fitness)

    search = untrained(monkeypatch, cost)
    plan = file({"rungs": 0, "metric_mode": "min"})
    done = search(plan, budget=4, out=tmp_path / "s", over=OVER)
    assert done.best.fitness == min(trial.fitness for trial in done.trials)


def test_pruning_is_asynchronous_successive_halving(monkeypatch, tmp_path):
    search = untrained(monkeypatch)
    plan = file({"reduction_factor": 3, "rungs": 2, "fitness_smoothing": 0.5, "seed": 2})
    done = search(plan, budget=14, out=tmp_path / "s", over=OVER)
    seen: dict[int, list[float]] = {}
    states = []
    for trial in done.trials:
        assert list(trial.scores) == [100, 300, TOTAL][: len(trial.scores)]
        smooth, state = math.nan, "finished"
        for rung, (steps, score) in enumerate(trial.scores.items()):
            raw = -distance(trial.values) - 2.0 * (trial.values[MEMORY] == "none")
            raw -= 0.01 * (2 - rung)
            smooth = raw if rung == 0 else 0.5 * smooth + 0.5 * raw
            assert score == pytest.approx(smooth, abs=1e-12)
            if steps == TOTAL:
                break
            reached = seen.setdefault(rung, [])
            reached.append(score)
            places = max(1, len(reached) // 3)
            if sorted(reached, reverse=True).index(score) >= places:
                state = "pruned"
                assert rung == len(trial.scores) - 1
                assert trial.reason == f"pruned after {steps} steps"
        assert trial.state == state
        states.append(state)
    assert states.count("pruned") >= 5
    assert states.count("finished") >= 2
    assert done.best.state == "finished"


PLAN = {"startup_trials": 2, "reduction_factor": 2, "rungs": 1, "seed": 4}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the document of a search that nobody interrupted."""
    out = tmp_path_factory.mktemp("whole") / "s"
    with pytest.MonkeyPatch.context() as patch:
        untrained(patch)(file(PLAN), budget=4, out=out, over=OVER)
    assert {trial.state for trial in read_search(out).trials} == {"finished", "pruned"}
    return (out / "search.json").read_bytes()


def test_another_seed_gives_other_trials(monkeypatch, tmp_path, whole):
    search = untrained(monkeypatch)
    done = search(file({**PLAN, "seed": 5}), budget=1, out=tmp_path / "s", over=OVER)
    first = json.loads(whole)["trials"][0]["values"]
    assert dict(done.trials[0].values) != first


def test_trials_that_are_drawn_at_random_differ(monkeypatch, tmp_path):
    search = untrained(monkeypatch)
    plan = {**PLAN, "startup_trials": 6, "rungs": 0}
    done = search(file(plan), budget=6, out=tmp_path / "s", over=OVER)
    assert len({trial.values[RATE] for trial in done.trials}) == 6


class Dying:
    """Study whose process dies as soon as some call is done."""

    def __init__(self, monkeypatch, method, call):
        real, self.count = getattr(Study, method), 0

        def mortal(study, *arguments, **options):
            self.count += 1
            result = real(study, *arguments, **options)
            if self.count == call:
                raise Killed
            return result

        monkeypatch.setattr(Study, method, mortal)


@pytest.mark.parametrize("method", ["propose", "report", "is_pruned", "end"])
def test_a_search_that_is_killed_anywhere_goes_on_as_if_it_had_not_been(
    monkeypatch, tmp_path, whole, method
):
    search, out = untrained(monkeypatch), tmp_path / "s"
    for call in (1, 2):  # the second kill hits a search that went on after the first
        with monkeypatch.context() as patch:
            Dying(patch, method, call)
            with pytest.raises(Killed):
                search(file(PLAN), budget=4, out=out, over=OVER)
    search(file(PLAN), budget=4, out=out, over=OVER)
    assert (out / "search.json").read_bytes() == whole


def test_a_larger_budget_goes_on_and_a_reached_one_does_nothing(monkeypatch, tmp_path):
    search = untrained(monkeypatch)
    ended = []
    options = {"out": tmp_path / "s", "over": OVER, "on_trial": ended.append}
    first = search(base(), budget=2, **options)
    again = search(base(), budget=2, **options)
    more = search(base(), budget=3, **options)
    assert first.trials == again.trials == more.trials[:2]
    assert [trial.number for trial in ended] == [0, 1, 2]


def test_refused_and_failed_trials_are_none_and_diverged_ones_are(monkeypatch, tmp_path):
    def moody(job):
        if job.member == 1:
            raise ConfigError("config-inconsistent", wrong="a must fit b", found="x", remedy="y")
        if job.member == 2:
            raise DataError("data-missing", wrong="bars must be there", found="none", remedy="y")
        outcome = planted(job)
        return replace(outcome, fitness=math.nan, stopped=True) if job.member == 3 else outcome

    search = untrained(monkeypatch, moody)
    done = search(file({"rungs": 0}), budget=3, out=tmp_path / "s", over=OVER)
    states = [trial.state for trial in done.trials]
    assert states == ["finished", "refused", "failed", "diverged", "finished"]
    assert [trial.number for trial in done.counted] == [0, 3, 4]
    assert done.trials[1].reason == "a must fit b"
    assert "bars must be there" in done.trials[2].reason
    assert done.report.is_file()


def test_values_that_do_not_fit_each_other_are_drawn_again(monkeypatch, tmp_path):
    search = untrained(monkeypatch, lambda job: replace(planted(job), fitness=0.0))
    over = {**OVER, "ppo.batch_size": "2,4", "ppo.microbatch_size": "1,4"}
    done = search(file({"rungs": 0}), budget=4, out=tmp_path / "s", over=over)
    odd = [t for t in done.trials if t.values["ppo.batch_size"] < t.values["ppo.microbatch_size"]]
    assert odd
    assert all(trial.state == "refused" for trial in odd)
    assert len(done.counted) == 4


@pytest.mark.refusal
def test_a_search_gives_up_where_trial_after_trial_fails(monkeypatch, tmp_path):
    def broken(job):
        raise DataError("data-missing", wrong="bars must be there", found="none", remedy="y")

    search = untrained(monkeypatch, broken)
    error = refused(search, base(), budget=9, out=tmp_path / "s", over=OVER)
    assert error.code == "trial-failed"
    assert "3 failed trials in a row" in str(error)
    assert "bars must be there" in str(error)
    monkeypatch.setattr(search_module, "advance", planted)
    assert len(search(base(), budget=1, out=tmp_path / "s", over=OVER).counted) == 1


@pytest.mark.refusal
def test_a_search_gives_up_where_every_trial_fails_late(monkeypatch, tmp_path):
    def late(job):
        if job.round:
            raise DataError("data-missing", wrong="bars must be there", found="none", remedy="y")
        return replace(planted(job), fitness=float(job.member))  # nobody is pruned

    search = untrained(monkeypatch, late)
    error = refused(search, base(), budget=9, out=tmp_path / "s", over=OVER)
    assert error.code == "trial-failed"


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({}, "must name one setting or more"),
        ({"seed": "1,2"}, "changes the task, the budget or how trials are judged"),
        ({"ppo.total_steps": "int:100:200"}, "changes the task, the budget"),
        ({"task.data.validation_share": "float:0.1:0.3"}, "how trials are judged"),
        ({"validation.episodes": "int:1:8"}, "how trials are judged"),
        ({"network.memory": "lstm,rnn"}, "is refused: `network.memory` must be"),
        ({"network.memory": "float:0:1"}, "is refused: `network.memory` must be"),
        ({"network.encoder_sizes": "8,16"}, "is refused: `network.encoder_sizes`"),
        ({"ppo.clip_range": "float:-1:1"}, "is refused: `ppo.clip_range` must be"),
    ],
)
def test_a_setting_that_cannot_be_searched_is_refused_and_leaves_nothing(
    monkeypatch, tmp_path, over, words
):
    search = untrained(monkeypatch)
    error = refused(search, base(), budget=1, out=tmp_path / "runs" / "s", over=over)
    assert words in str(error)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.refusal
def test_a_budget_below_one_and_too_short_a_training_are_refused(monkeypatch, tmp_path):
    search = untrained(monkeypatch)
    for wish in ({"budget": 0}, {"budget": -1}, {"budget": 1, "jobs": 0}):
        error = refused(search, base(), out=tmp_path / "s", over=OVER, **wish)
        assert isinstance(error, RangeError)
        assert "must be at least 1" in str(error)
    short = file(ppo__total_steps=8)
    error = refused(search, short, budget=1, out=tmp_path / "s", over=OVER)
    assert "`ppo.total_steps` must be at least 9 for 2 `search.rungs`" in str(error)
    assert not (tmp_path / "s").exists()


@pytest.mark.refusal
def test_a_folder_of_another_search_version_or_thing_is_refused(monkeypatch, tmp_path):
    search, out = untrained(monkeypatch), tmp_path / "s"
    search(base(), budget=1, out=out, over=OVER)
    error = refused(search, base(), budget=1, out=out, over={**OVER, RATE: "log:1e-5:1e-2"})
    assert f"`search.over.{RATE}.max`" in str(error)
    assert "0.01 instead of 0.1" in str(error)
    error = refused(search, base(ppo__gamma=0.5), budget=1, out=out, over=OVER)
    assert "`ppo.gamma` must stay" in str(error)
    saved = json.loads((out / "search.json").read_text())
    (out / "search.json").write_text(json.dumps({**saved, "code_version": "0.0.0"}))
    error = refused(search, base(), budget=1, out=out, over=OVER)
    assert (error.code, "`code_version`" in str(error)) == ("artifact-mismatch", True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "bars.csv").write_text("")
    error = refused(search, base(), budget=1, out=tmp_path / "other", over=OVER)
    assert (error.code, "`bars.csv`" in str(error)) == ("artifact-exists", True)


@pytest.mark.refusal
def test_a_damaged_study_is_refused_in_words(monkeypatch, tmp_path):
    search, out = untrained(monkeypatch), tmp_path / "s"
    search(base(), budget=1, out=out, over=OVER)
    (out / "study.db").write_bytes(b"no database at all, but long enough to be taken for one" * 9)
    error = refused(search, base(), budget=2, out=out, over=OVER)
    assert error.code == "artifact-unreadable"
    assert "not a database" in str(error)


@pytest.mark.refusal
def test_a_missing_extra_is_named(monkeypatch, tmp_path):
    search = untrained(monkeypatch)
    monkeypatch.setitem(sys.modules, "optuna", None)
    error = refused(search, base(), budget=1, out=tmp_path / "s", over=OVER)
    assert error.code == "missing-extra"
    assert "pip install 'stormsail[search]'" in str(error)


def test_whole_numbers_are_whole_and_a_path_may_have_any_sign(monkeypatch, tmp_path):
    search = untrained(monkeypatch)
    out = tmp_path / "a b%41?#{x}"
    done = search(base(), budget=3, out=out, over={**OVER, EPOCHS: "int:1:3"})
    assert {type(trial.values[EPOCHS]) for trial in done.trials} == {int}
    assert (out / "study.db").is_file()
