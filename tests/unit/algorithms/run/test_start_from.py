"""A run that begins from another agent: what it takes over, what is new, what is on record."""

import contextlib
import json
import sys

import pytest
import torch

from stormsail.algorithms.run.folder import open_run, read_lineage
from stormsail.algorithms.run.start_from import load_start
from stormsail.algorithms.run.tasks import binding
from stormsail.algorithms.trainer import Trainer, train
from stormsail.cli.main import main
from stormsail.core.errors import ArtifactError, ConfigError
from stormsail.core.files.artifact import read_artifact
from stormsail.evaluation.stats.trials import TrialLedger
from stormsail.modules import Agent
from training_lab import UPDATES, image, small

CHANGED = {"ppo__learning_rate": 5e-4, "seed": 9, "network__learn_initial_state": True}
FIRST = {"network__learn_initial_state": True}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A finished run to begin from."""
    out = tmp_path_factory.mktemp("source") / "first"
    train(small(**FIRST), out=out, tensorboard=False)
    return out


def begun(config, out, start):
    """Return the learner of a run before its first update, and the folder's lineage."""
    bound = binding(config)
    with open_run(out, config, bound, source=start.source, ancestors=start.agent.lineage) as folder:
        return Trainer(folder, bound, start=start).ppo, folder.lineage


def same(first, second):
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)


def test_weights_and_normalisers_are_taken_over_and_everything_else_is_new(source, tmp_path):
    start = load_start(source / "best", keep_optimizer=False)
    saved = Agent.load(source / "best")
    ppo, lineage = begun(small(**CHANGED), tmp_path / "run", start)
    assert same(ppo.agent.state_dict(), saved.state_dict())
    assert float(ppo.agent.observation_scale.count) > 0.0
    assert ppo.optimizer.state_dict()["state"] == {}
    assert (ppo.update_count, ppo.rate_factor, ppo.returns.update) == (0, 1.0, 0)
    # a new rollout boundary: the learned first memory of these weights, in every environment
    assert torch.equal(ppo.env_state.memory, saved.initial_memory(4))
    assert not torch.equal(ppo.env_state.memory, torch.zeros_like(ppo.env_state.memory))
    assert lineage.source.agent == read_artifact(source / "best").digest


def test_the_scale_of_returns_is_not_set_anew(source, tmp_path):
    """The first rollout sets it where critics are untrained; here it would spoil what they say."""
    start = load_start(source, keep_optimizer=False)
    scale = float(start.agent.return_scale.std)
    assert scale != 1.0
    ppo, _ = begun(small(**CHANGED, returns__normalize_returns="popart"), tmp_path / "run", start)
    seen = []
    rescale = ppo._rescale

    def watched(*parts, **named):
        seen.append(float(ppo.agent.return_scale.std))
        return rescale(*parts, **named)

    ppo._rescale = watched
    ppo.update()
    assert seen == [scale]


def test_a_kept_optimizer_goes_on_and_a_fresh_one_does_not(source, tmp_path):
    kept, lineage = begun(
        small(**CHANGED), tmp_path / "kept", load_start(source, keep_optimizer=True)
    )
    fresh, _ = begun(small(**CHANGED), tmp_path / "fresh", load_start(source, keep_optimizer=False))
    assert fresh.optimizer.state_dict()["state"] == {}
    state = kept.optimizer.state_dict()["state"]
    assert len(state) == len(list(kept.agent.parameters()))
    assert {int(entry["step"]) for entry in state.values()} == {UPDATES * 4}
    assert same(kept.agent.state_dict(), fresh.agent.state_dict())
    assert lineage.source.optimizer == "kept"
    assert lineage.source.steps == UPDATES * 32


def test_a_run_may_begin_from_an_agent_that_was_trained_at_other_rates(source, tmp_path):
    """What only its training depended on is the new run's own; its weights are the agent's."""
    start = load_start(source / "best", keep_optimizer=False)
    changes = {"critic__learning_rate_factor": 5.0, "network__first_layer": "spread"}
    ppo, _ = begun(small(**CHANGED, **changes), tmp_path / "run", start)
    assert same(ppo.agent.state_dict(), Agent.load(source / "best").state_dict())
    rates = [group["lr"] for group in ppo.optimizer.param_groups]
    assert rates == pytest.approx([rates[0], 5.0 * rates[0]], rel=1e-12)


@pytest.mark.refusal
def test_an_agent_that_does_not_fit_is_refused_with_all_differences(source, tmp_path):
    with pytest.raises(ConfigError) as caught:
        train(
            small("pendulum", **FIRST, network__lstm_hidden_size=7, critic__num_quantiles=9),
            out=tmp_path / "run", tensorboard=False, start_from=source / "best",
        )  # fmt: skip
    changed = (
        "actions.count", "actions.high", "actions.kind", "actions.low", "critic.num_quantiles",
        "network.lstm_hidden_size", "observation_names",
    )  # fmt: skip
    assert caught.value.wrong == (
        ", ".join(f"`{name}`" for name in changed)
        + f" must be as in the agent {source / 'best'} that the run begins from"
    )
    assert "`network.lstm_hidden_size` 7 instead of 5" in caught.value.found
    assert list(tmp_path.iterdir()) == []


@pytest.mark.refusal
def test_an_optimizer_that_is_not_there_is_refused(source, tmp_path):
    options = {"out": tmp_path / "run", "tensorboard": False}
    with pytest.raises(ArtifactError) as caught:
        train(small(**CHANGED), start_from=source / "best", keep_optimizer=True, **options)
    assert str(caught.value) == (
        f"{source / 'best'} must have an optimizer to keep; found an artifact of the kind `agent`, "
        "which holds weights and normalisers only. Pass the folder of its run, whose checkpoints "
        "have one, or let the optimizer be a fresh one. [artifact-missing]"
    )
    with pytest.raises(ConfigError, match="`keep_optimizer` without `start_from`"):
        train(small(**CHANGED), keep_optimizer=True, **options)
    with pytest.raises(ArtifactError) as caught:  # another optimizer
        train(
            small(**CHANGED, optimizer__optimizer_class="AdamW"),
            start_from=source, keep_optimizer=True, **options,
        )  # fmt: skip
    assert caught.value.wrong == "the saved state of `optimizer` must be one of this run"
    with pytest.raises(ArtifactError):
        train(small(**CHANGED), start_from=tmp_path / "nowhere", **options)
    assert list(tmp_path.iterdir()) == []


def test_the_same_command_continues_and_another_source_is_refused(source, tmp_path, monkeypatch):
    config = small(**CHANGED)
    train(config, out=tmp_path / "whole", tensorboard=False, start_from=source)
    real = Trainer.advance
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "advance", lambda self: (real(self), self.stop(15)))
        train(config, out=tmp_path / "cut", tensorboard=False, start_from=source)
    train(config, out=tmp_path / "cut", tensorboard=False, start_from=source)
    assert image(tmp_path / "cut") == image(tmp_path / "whole")
    before = image(tmp_path / "cut")
    train(config, out=tmp_path / "cut", tensorboard=False)  # left out: the run's own
    for options in (
        {"start_from": source / "best"},
        {"start_from": source, "keep_optimizer": True},
    ):
        with pytest.raises(ArtifactError) as caught:
            train(config, out=tmp_path / "cut", tensorboard=False, **options)
        assert caught.value.code == "artifact-mismatch"
        assert caught.value.wrong.endswith("optimizer fresh)")
    assert image(tmp_path / "cut") == before


@pytest.mark.refusal
def test_a_run_without_a_source_gets_none_later(source, tmp_path):
    config = small(**FIRST)
    train(config, out=tmp_path / "run", tensorboard=False)
    with pytest.raises(ArtifactError) as caught:
        train(config, out=tmp_path / "run", tensorboard=False, start_from=source)
    assert "begun with, random weights" in caught.value.wrong


def test_lineage_is_in_the_agent_and_in_the_ledger(source, tmp_path):
    config = small(**CHANGED, validation__every_updates=1)
    done = train(config, out=tmp_path / "run", tensorboard=False, start_from=source / "best")
    ancestors = Agent.load(source / "best").lineage
    lineage = Agent.load(done.best).lineage
    origin = {
        "agent": read_artifact(source / "best").digest, "name": "best", "optimizer": "fresh",
        "steps": ancestors[-1]["steps"], "config_hash": ancestors[-1]["config_hash"],
    }  # fmt: skip
    own = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert lineage[:-1] == (*ancestors, {"stage": "started-from", **origin})
    assert lineage[-1]["stage"] == "trained"
    assert lineage[-1]["config_hash"] == own["config_hash"]
    assert own["source"] == origin
    for line in TrialLedger(tmp_path / "trials.jsonl").read().trials:
        assert line.extra["from"] == origin
    assert read_lineage(tmp_path / "run").source.record() == origin


@pytest.mark.refusal
def test_a_start_killed_before_its_first_checkpoint_wants_its_agent_again(source, tmp_path):
    config, out = small(**CHANGED), tmp_path / "run"
    start = load_start(source, keep_optimizer=False)
    with open_run(out, config, binding(config), source=start.source) as folder:
        folder.begin()
    with pytest.raises(ArtifactError) as caught:
        train(config, out=out, tensorboard=False)
    assert caught.value.remedy == "Repeat the command with `--from` that began it."
    done = train(config, out=out, tensorboard=False, start_from=source)
    assert done.status == "finished"


def test_the_command_line_begins_from_an_agent(source, tmp_path, monkeypatch, capsys):
    file = tmp_path / "tiny.toml"
    file.write_text(small(**CHANGED).to_toml())
    arguments = ["train", file, "--out", tmp_path / "run", "--from", source, "--keep-optimizer"]
    monkeypatch.setattr(sys, "argv", ["stormsail", *map(str, arguments)])
    with contextlib.suppress(SystemExit):
        main()
    assert "finished after" in capsys.readouterr().out
    assert read_lineage(tmp_path / "run").source.optimizer == "kept"
