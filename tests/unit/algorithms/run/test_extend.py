"""A run whose budget is extended: what is computed, what is on record, what is refused."""

import json
import shutil
import sys

import pyarrow.parquet as pq
import pytest
import torch

from stormsail.algorithms.run.folder import read_config, read_lineage
from stormsail.algorithms.trainer import train
from stormsail.cli.main import main
from stormsail.core.errors import ArtifactError, ConfigError
from stormsail.evaluation.stats.trials import TrialLedger
from stormsail.modules import Agent
from training_lab import UPDATES, image, interrupted, run_all, run_for, small

STEPS = UPDATES * 32
LONGER = 2 * STEPS
FALLING = {"ppo__learning_rate": 1e-3, "ppo__optimizer_lr_min": 0.0}


def extended(config, out, steps=LONGER, **options):
    return train(config, out=out, tensorboard=False, extend_to=steps, **options)


def rates(out):
    return pq.read_table(out / "metrics.parquet")["train/optimizer_lr"].to_pylist()


def test_a_finished_run_goes_on_to_the_new_end(tmp_path):
    config, out = small(**FALLING), tmp_path / "run"
    first = run_all(config, out)
    assert (first.status, first.steps) == ("finished", STEPS)
    done = extended(config, out)
    assert (done.status, done.updates, done.steps) == ("finished", 2 * UPDATES, LONGER)
    assert read_config(out).ppo.total_steps == LONGER == done.config.ppo.total_steps
    (extension,) = read_lineage(out).extensions
    assert extension.model_dump() == {
        "steps": STEPS, "old_total": STEPS, "new_total": LONGER, "finished": True,
        "old_rates": None, "new_rates": None,
    }  # fmt: skip
    # 1e-3 * (1 - k / 6) in update k; at the end of the first budget it is 0, and stays there
    planned = [1e-3 * (1.0 - k / UPDATES) for k in range(UPDATES)]
    assert rates(out)[:UPDATES] == pytest.approx(planned, rel=1e-12)
    assert rates(out)[UPDATES:] == [0.0] * UPDATES
    log = [json.loads(line)["kind"] for line in (out / "process.jsonl").read_text().splitlines()]
    assert log == ["started", "finished", "extended", "resumed", "finished"]


def test_an_interrupted_run_falls_from_where_it_stood_to_the_new_end(tmp_path, monkeypatch):
    config, out = small(**FALLING), tmp_path / "run"
    interrupted(config, out, monkeypatch, 3)
    extended(config, out)
    # half of the way in 3 of 6 updates, the other half in the 9 that are left of 12
    expected = [1e-3 * (1.0 - k / 6.0) for k in range(3)]
    expected += [1e-3 * 0.5 * (1.0 - k / 9.0) for k in range(9)]
    assert rates(out) == pytest.approx(expected, rel=1e-12)


def test_new_rates_begin_a_line_of_their_own(tmp_path):
    out = tmp_path / "run"
    run_all(small(**FALLING), out)
    changed = small(**{**FALLING, "ppo__learning_rate": 6e-4, "ppo__learning_rate_final": 3e-4})
    extended(changed, out)
    expected = [6e-4 - 3e-4 * k / UPDATES for k in range(UPDATES)]
    assert rates(out)[UPDATES:] == pytest.approx(expected, rel=1e-12)
    (extension,) = read_lineage(out).extensions
    assert (extension.old_rates, extension.new_rates) == ((1e-3, 0.0), (6e-4, 3e-4))
    assert read_config(out).ppo.learning_rate == 6e-4
    # the first command and the changed one are both known to the run now
    before = image(out)
    assert run_all(small(**FALLING), out).steps == LONGER
    assert extended(changed, out).steps == LONGER
    assert image(out) == before


def test_an_extension_that_is_interrupted_ends_with_the_same_bytes(tmp_path, monkeypatch):
    config = small("market")
    for name, cuts in (("whole", ()), ("cut", (7, 9))):
        run_all(config, tmp_path / name)
        for updates in cuts:
            done = interrupted(config, tmp_path / name, monkeypatch, updates, extend_to=LONGER)
            assert done.status == "interrupted"
        # the plain command, once the extension is on record
        done = run_all(config, tmp_path / name) if cuts else extended(config, tmp_path / name)
        assert (done.status, done.steps) == ("finished", LONGER)
    assert image(tmp_path / "cut") == image(tmp_path / "whole")
    lineages = [(tmp_path / name / "lineage.json").read_text() for name in ("whole", "cut")]
    assert lineages[0] == lineages[1]


def test_an_older_generation_repeats_what_was_before_the_extension(tmp_path):
    """The newest checkpoint is lost; the updates before the extension are done with its rates."""
    config = small(**FALLING, validation__every_updates=0)
    for name in ("whole", "lost"):
        run_all(config, tmp_path / name)
        if name == "lost":  # extended first, then damaged
            with pytest.raises(KeyboardInterrupt):
                train(config, out=tmp_path / name, tensorboard=False, extend_to=LONGER,
                      on_progress=_stop)  # fmt: skip
            newest = max((tmp_path / name / "checkpoints").glob("[0-9]*"))
            assert int(newest.name) == STEPS
            shutil.rmtree(newest)
        extended(config, tmp_path / name)
    assert rates(tmp_path / "lost") == rates(tmp_path / "whole")
    states = [Agent.state_dict(run_all(config, tmp_path / n).agent) for n in ("whole", "lost")]
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name]), name


def _stop(_progress):
    raise KeyboardInterrupt


def test_the_planned_total_is_a_plain_resume(tmp_path):
    config = small("market")
    run_all(config, tmp_path / "whole")
    run_for(config, tmp_path / "cut", 3)
    extended(config, tmp_path / "cut", STEPS)
    assert image(tmp_path / "cut") == image(tmp_path / "whole")
    assert read_lineage(tmp_path / "cut").extensions == ()


@pytest.mark.refusal
def test_what_is_no_extension_is_refused_and_changes_nothing(tmp_path):
    config, out = small(), tmp_path / "run"
    with pytest.raises(ArtifactError) as missing:
        extended(config, out)
    assert missing.value.wrong == f"{out} must be the folder of a run"
    assert list(tmp_path.iterdir()) == []
    run_all(config, out)
    before = image(out)
    for total in (1, STEPS - 32, STEPS):
        with pytest.raises(ConfigError) as caught:
            extended(config, out, total)
        assert str(caught.value) == (
            f"a run can only be extended beyond the {STEPS} steps that it did and the {STEPS} of "
            f"its `ppo.total_steps`; found an extension to {total} steps. Name a larger number, or "
            "leave the extension out to finish the run as planned. [config-inconsistent]"
        )
    with pytest.raises(ConfigError, match=r"`ppo\.gamma` must stay"):
        extended(small(ppo__gamma=0.9), out)
    assert image(out) == before
    extended(config, out)
    with pytest.raises(ConfigError) as caught:  # other rates on the way to the same end
        extended(small(ppo__learning_rate=5e-4), out)
    assert caught.value.found == "0.0005 and 0"


def test_derived_values_stay_what_they_were(tmp_path):
    """Twice the budget would derive other rollouts and decays."""
    opened = ("ppo.n_steps", "ppo.batch_size", "ppo.sequence_length",
              "entropy.ent_coef_decay_steps",
              "bc.bc_warmup_steps", "bc.bc_decay_steps")  # fmt: skip
    changes = {"bc.awr_coef": 0.5, "ppo.total_steps": 128}
    config = small().replace(**dict.fromkeys(opened), **changes)
    first = run_all(config, tmp_path / "run")
    ppo = first.config.ppo
    assert (ppo.n_steps, ppo.batch_size, first.updates) == (16, 1, 2)
    assert first.config.entropy.ent_coef_decay_steps == 1
    assert (first.config.bc.bc_warmup_steps, first.config.bc.bc_decay_steps) == (26, 102)
    again = extended(config, tmp_path / "run", 256)
    assert again.config == first.config.replace(**{"ppo.total_steps": 256})
    assert again.updates == 4


def test_decays_that_are_shares_of_the_budget_stretch_and_given_ones_do_not(tmp_path, monkeypatch):
    given = {"entropy.ent_coef_decay_steps": 6, "bc.bc_warmup_steps": 96, "bc.bc_decay_steps": 96}
    shared = dict.fromkeys(given)
    # half of the budget without a fall: 20 and 80 percent of 192 are 38 and 154
    common = {"bc.awr_coef": 0.5, "entropy.ent_coef_min": 0.0, "entropy.ent_coef_final": 0.0}
    for name, settings in (("given", given), ("shared", shared)):
        config = small().replace(**common, **settings)
        interrupted(config, tmp_path / name, monkeypatch, 3)
        extended(config, tmp_path / name)
    read = {
        (name, metric): pq.read_table(tmp_path / name / "metrics.parquet")[metric].to_pylist()
        for name in ("given", "shared")
        for metric in ("train/ent_coef", "train/policy_bc_coef")
    }
    places = [min(k, 3 + (k - 3) / 3) for k in range(12)]  # of 12 updates in the first 6
    assert read["shared", "train/ent_coef"] == pytest.approx(
        [0.01 * max(1.0 - place / 5.0, 0.0) for place in places], rel=1e-9
    )
    assert read["given", "train/ent_coef"] == pytest.approx(
        [0.01 * max(1.0 - k / 6.0, 0.0) for k in range(12)], rel=1e-9
    )
    assert read["shared", "train/policy_bc_coef"] == pytest.approx(
        [0.5 * (1.0 - max(32.0 * place - 38.0, 0.0) / 154.0) for place in places], rel=1e-9
    )
    assert read["given", "train/policy_bc_coef"] == pytest.approx(
        [0.5 * (1.0 - min(max(32.0 * k - 96.0, 0.0) / 96.0, 1.0)) for k in range(12)], abs=1e-12
    )


def test_an_extension_of_a_known_result_counts_as_one_more_trial(tmp_path, monkeypatch):
    ledger = TrialLedger(tmp_path / "trials.jsonl")
    config = small("market", task__market__levels=(-1.0, 1.0))
    interrupted(config, tmp_path / "run", monkeypatch, 2)
    train(config, out=tmp_path / "run", tensorboard=False, extend_to=STEPS + 64)
    # interrupted when it was extended: nobody knew its result
    assert [line.status for line in ledger.read().trials] == ["started", "extended", "finished"]
    assert ledger.count() == 1
    for _ in range(2):  # the second call finds everything done
        train(config, out=tmp_path / "run", tensorboard=False, extend_to=LONGER)
    lines = ledger.read().trials
    assert [line.status for line in lines] == [
        "started", "extended", "finished", "extended", "finished"
    ]  # fmt: skip
    assert ledger.count() == 2
    assert len({line.extra["run_key"] for line in lines}) == 1
    assert [line.extra.get("looks", 0) for line in lines] == [0, 0, 0, 1, 1]
    assert lines[3].extra["extension"]["new_total"] == LONGER
    assert ledger.sharpes().tolist() == [lines[2].sharpe_per_bar, lines[4].sharpe_per_bar]


def test_the_best_agent_says_how_its_run_grew(tmp_path):
    config = small(validation__every_updates=1)
    run_all(config, tmp_path / "run")
    done = extended(config, tmp_path / "run")
    config_hash = json.loads((tmp_path / "run" / "manifest.json").read_text())["config_hash"]
    trained = {"stage": "trained", "config_hash": config_hash}
    grown = {"stage": "extended", "steps": STEPS, "old_total": STEPS, "new_total": LONGER,
             "finished": True, "old_rates": None, "new_rates": None}  # fmt: skip
    assert done.agent.lineage == (grown, {**trained, "steps": LONGER})
    *older, last = Agent.load(done.best).lineage
    assert last == {**trained, "steps": last["steps"]}
    assert older == ([grown] if last["steps"] >= STEPS else [])


def test_the_command_line_extends(tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    run_all(small(), out)

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["stormsail", *map(str, arguments)])
        try:
            main()
        except SystemExit as end:
            return end.code or 0, capsys.readouterr()
        return 0, capsys.readouterr()

    rate = ("--set", "ppo.learning_rate=2e-4")
    status, said = command("train", "--out", out, "--extend-to", LONGER, *rate)
    assert status == 0, said.err
    assert f"finished after {LONGER} steps" in said.out
    assert read_lineage(out).extensions[0].new_rates == (2e-4, 0.0)
    status, said = command("resume", out, "--extend-to", LONGER + 32)
    assert (status, read_config(out).ppo.total_steps) == (0, LONGER + 32), said.err
    status, said = command("train", "--out", tmp_path / "none", "--extend-to", 10)
    assert status == 2
    assert "none must be the folder of a run" in said.err
