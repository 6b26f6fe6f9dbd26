"""Every training is a trial on record, once, whatever happened to it on the way."""

import json
import math
import shutil

import numpy as np
import pytest
import torch

from stormsail.algorithms import trainer
from stormsail.algorithms.run.evaluate import evaluate
from stormsail.algorithms.run.folder import open_run
from stormsail.algorithms.run.tasks import binding, make_task, market_data
from stormsail.algorithms.trainer import train
from stormsail.core.clock import ManualClock, iso
from stormsail.core.errors import ArtifactError, DataError
from stormsail.core.generators import Generators
from stormsail.evaluation.stats.trial_marks import check_marks
from stormsail.evaluation.stats.trials import TrialLedger
from stormsail.evaluation.walk_forward.seal import Sealed, openings_of
from stormsail.modules import Agent
from training_lab import interrupted, run_all
from training_lab import small as tiny

TIME_NS = 1_700_000_000_000_000_000


def small(task="cartpole-lstm", **changes):
    """Return a tiny run; in the market it cannot stay out, so that its returns have a spread."""
    held = {"task__market__levels": (-1.0, 1.0)} if task == "market" else {}
    return tiny(task, **{**held, **changes})


def ledger_of(folder):
    return TrialLedger(folder / "trials.jsonl")


def statuses(folder):
    return [(trial.name, trial.status) for trial in ledger_of(folder).read().trials]


def test_a_training_writes_a_line_when_it_begins_and_one_when_it_ends(tmp_path):
    config = small("market")
    train(config, out=tmp_path / "run", tensorboard=False, clock=ManualClock(TIME_NS))
    first, last = ledger_of(tmp_path).read().trials
    assert (first.status, first.sharpe_per_bar, first.bars) == ("started", None, 0)
    assert (last.status, last.kind, last.name) == ("finished", "training", "run")
    assert first.time_ns == last.time_ns == TIME_NS
    assert first.data_hash == last.data_hash == binding(config)["data"]
    assert first.config_hash == last.config_hash
    assert {name: last.extra[name] for name in ("task", "seed")} == {"task": "market", "seed": 5}
    assert first.extra == last.extra
    assert len(last.extra["run_key"]) == 64
    assert ledger_of(tmp_path).count() == 1


def test_the_ratio_is_that_of_the_best_agents_own_episodes(tmp_path):
    config = small("market", validation__every_updates=2)
    done = run_all(config, tmp_path / "run")
    task = make_task(config, batch=3, purpose="evaluation")
    generator = Generators(5).stream("validation")
    agent = Agent.load(done.best)
    state, observation = task.reset(generator)
    memory, running, returns = agent.initial_memory(3), torch.ones(3, dtype=torch.bool), []
    while running.any():
        decision = agent.decide(observation, memory, deterministic=True)
        state, step = task.step(state, decision.action, generator)
        observation, memory = step.observation, decision.memory
        returns += [math.exp(one) - 1.0 for one in step.reward[running].double().tolist()]
        running = running & ~(step.terminated | step.truncated)
    expected = np.mean(returns) / np.std(returns, ddof=1)
    (known,) = ledger_of(tmp_path).sharpes()
    assert known == pytest.approx(expected, rel=1e-9)
    assert ledger_of(tmp_path).read().trials[-1].bars == len(returns) == done.bars
    assert known == done.sharpe_per_bar


def test_rewards_that_are_no_returns_have_no_ratio(tmp_path):
    done = run_all(small(), tmp_path / "run")
    assert done.best_score is not None
    (trial,) = ledger_of(tmp_path).read().counted()
    assert (trial.status, trial.sharpe_per_bar, trial.bars) == ("finished", None, 0)
    assert trial.data_hash == ""


def test_an_agent_that_never_moves_has_no_ratio(tmp_path):
    config = small("market", task__market__levels=(0.0, 1.0))
    task = make_task(config, batch=3, purpose="evaluation")
    agent = run_all(config, tmp_path / "run").agent
    with torch.no_grad():
        for parameter in agent.network.actor_last.parameters():
            parameter.zero_()
        agent.network.actor_last.bias.copy_(torch.tensor([9.0, 0.0]))
    evaluation = evaluate(task, agent, torch.Generator().manual_seed(0), log_returns=True)
    assert (evaluation.score, evaluation.sharpe_per_bar) == (0.0, None)
    assert evaluation.bars == 3 * 12


def test_a_resumed_training_is_one_trial_with_the_same_ratio(tmp_path, monkeypatch):
    config = small("market")
    run_all(config, tmp_path / "whole" / "run")
    (expected,) = ledger_of(tmp_path / "whole").sharpes()
    for updates in (1, 4, 5):  # the best look happens before the last interruption
        assert interrupted(config, tmp_path / "run", monkeypatch, updates).status == "interrupted"
        assert (ledger_of(tmp_path).count(), statuses(tmp_path)) == (1, [("run", "started")])
    run_all(config, tmp_path / "run")
    assert statuses(tmp_path) == [("run", "started"), ("run", "finished")]
    assert ledger_of(tmp_path).sharpes().tolist() == [expected]


def test_a_finished_training_that_is_asked_for_again_adds_nothing(tmp_path):
    for _ in range(3):
        run_all(small("market"), tmp_path / "run")
    assert statuses(tmp_path) == [("run", "started"), ("run", "finished")]


def test_every_seed_and_every_folder_is_a_trial_of_its_own(tmp_path):
    run_all(small("market"), tmp_path / "a")
    run_all(small("market", seed=6), tmp_path / "b")
    run_all(small("market"), tmp_path / "c")
    ledger = ledger_of(tmp_path)
    assert ledger.count() == 3
    first, second, third = ledger.sharpes()
    assert first == third != second


def test_a_training_on_sealed_bars_opens_them_and_one_before_the_seal_does_not(tmp_path, caplog):
    ledger, config = ledger_of(tmp_path), small("market")
    run_all(config, tmp_path / "before")
    data = market_data(config)
    bars = Sealed(data.panel.symbols, data.validation)
    ledger.record(
        "validation", "v", config_hash="", data_hash="", sharpe_per_bar=None, bars=0,
        status="started", extra={"run_key": "k", **bars.document()},
    )  # fmt: skip
    run_all(config, tmp_path / "before")
    assert ledger.openings() == ()
    end = iso(data.validation.start_ms)
    run_all(small("market", task__data__end=end), tmp_path / "past")
    assert ledger.openings() == ()
    for _ in range(2):
        run_all(small("market", seed=6), tmp_path / "all")
    assert [(one.name, one.extra["by"]) for one in ledger.openings()] == [("all", "training")]
    assert openings_of(ledger.read(), bars) == list(ledger.openings())
    assert ledger.count() == 4
    assert caplog.text.count("this training reads bars that are sealed as the final test span") == 1


def test_the_manifest_names_the_line_with_which_the_run_began(tmp_path, monkeypatch):
    ledger, config = ledger_of(tmp_path), small("market")
    run_all(small("market", seed=6), tmp_path / "first")
    interrupted(config, tmp_path / "run", monkeypatch, 2)
    run_all(config, tmp_path / "run")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    third = ledger.read().trials[2]
    assert (third.name, third.status) == ("run", "started")
    assert manifest["trials"] == {"ledger": "../trials.jsonl", "line": 3, "hash": third.hash}
    check_marks(ledger, ledger.read())
    # moved to another workspace and asked for there, it is counted there
    shutil.move(tmp_path / "run", tmp_path / "other" / "run")
    other = ledger_of(tmp_path / "other")
    with pytest.raises(ArtifactError, match="must hold line 3"):
        check_marks(other, other.read())
    run_all(config, tmp_path / "other" / "run")
    check_marks(other, other.read())
    assert other.count() == 1


def test_what_failed_after_an_evaluation_has_a_result_and_is_a_trial(tmp_path, monkeypatch):
    config = small("market", validation__every_updates=1)
    real, updates = trainer.Trainer._update, []

    def failing(own):
        if len(updates) == 3:
            raise OSError("no memory")
        updates.append(1)
        return real(own)

    monkeypatch.setattr(trainer.Trainer, "_update", failing)
    with pytest.raises(OSError, match="no memory"):
        run_all(config, tmp_path / "run")
    ledger = ledger_of(tmp_path)
    assert statuses(tmp_path) == [("run", "started"), ("run", "failed")]
    assert ledger.count() == 1
    assert ledger.read().trials[-1].bars > 0


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            DataError("data-span", wrong="bars must be there", found="none", remedy="Wait."),
            "bars must be there; found none. Wait. [data-span]",
        ),
        (ZeroDivisionError("a bug"), "a bug"),
    ],
)
def test_a_training_that_failed_is_no_trial_and_may_finish_later(
    tmp_path, monkeypatch, error, reason
):
    config = small("market")

    def refuse(_trainer):
        raise error

    ledger = ledger_of(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "_update", refuse)
        for _ in range(2):
            with pytest.raises(type(error)):
                run_all(config, tmp_path / "run")
            assert ledger.count() == 0
    assert statuses(tmp_path) == [("run", "started"), ("run", "failed")] * 2
    assert ledger.read().trials[-1].extra["reason"] == reason
    run_all(config, tmp_path / "run")
    assert ledger.count() == 1
    assert ledger.sharpes().shape == (1,)


def test_a_refusal_before_the_run_begins_is_no_trial(tmp_path):
    config = small("market")
    with (
        open_run(tmp_path / "run", config, binding(config)),
        pytest.raises(ArtifactError, match="one process at a time"),
    ):
        run_all(config, tmp_path / "run")
    assert ledger_of(tmp_path).count() == 0


def test_a_lost_ledger_hears_of_a_run_again_when_it_goes_on(tmp_path, monkeypatch):
    interrupted(small("market"), tmp_path / "run", monkeypatch, 1)
    for name in ("trials.jsonl", "trials.jsonl.head"):
        (tmp_path / name).unlink()
    run_all(small("market"), tmp_path / "run")
    assert statuses(tmp_path) == [("run", "started"), ("run", "finished")]


def test_a_training_with_a_damaged_ledger_is_refused_before_it_learns(tmp_path):
    run_all(small("market"), tmp_path / "a")
    file = tmp_path / "trials.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[1]["sharpe_per_bar"] = 0.9
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ArtifactError, match=r"line 2 of the trial ledger .* must be as it was"):
        run_all(small("market", seed=6), tmp_path / "b")
    assert not (tmp_path / "b" / "checkpoints").exists()


def test_the_ledger_may_lie_elsewhere_and_name_other_bars(tmp_path):
    place = tmp_path / "far" / "trials.jsonl"
    out = tmp_path / "runs" / "fold-0-seed-5"
    train(small("market"), out=out, tensorboard=False, ledger=place, data_hash="all of it")
    assert [one.data_hash for one in TrialLedger(place).read().trials] == ["all of it"] * 2
    assert [path.name for path in out.parent.iterdir()] == ["fold-0-seed-5"]
