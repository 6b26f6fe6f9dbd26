"""`stormsail bench bets`: settings of the runs, rows that are kept, and the verdicts."""

import dataclasses
import json

import pytest
from typer.testing import CliRunner

from stormsail.bench.bets import bets as bench
from stormsail.bench.bets.bets_worlds import KNOWN
from stormsail.bench.campaign import RowLog
from stormsail.cli.main import app
from stormsail.core.errors import ArgumentError, ArtifactError

TINY = bench.Plan(n_envs=8, updates=2)


def row(world="stakes-8", *, seed=0, limited=True, mean=1.0, cvar=-8.0, best=1.6, limit=-8.0):
    return bench.Row(
        key=f"{world}{seed}{limited}", world=world, seed=seed, limited=limited, limit=limit,
        best=best, mean=mean, cvar=cvar, value_at_risk=0.0, mean_error=0.0, cvar_error=0.0,
        multiplier=1.0, updates=1, seconds=0.0, version="0",
    )  # fmt: skip


def claims(rows):
    return {verdict.claim: (verdict.passed, verdict.measured) for verdict in bench.verdicts(rows)}


# ------------------------------------------------------------------------------------------- runs


def test_settings_are_equal_in_all_worlds_but_for_sizes_and_the_limit():
    plan = bench.Plan()
    documents = []
    for world in bench.WORLDS.values():
        document = bench.Job(world, 3, plan).config.model_dump(mode="json")
        assert document["risk"].pop("cvar_limit") == world.limit
        assert document["ppo"].pop("n_steps") == world.bars + 1
        assert document["ppo"].pop("total_steps") == plan.updates * 64 * (world.bars + 1)
        for derived in ("sequence_length", "batch_size"):  # they follow the rows of a rollout
            document["ppo"].pop(derived)
        for derived in ("bc_warmup_steps", "bc_decay_steps"):
            document["bc"].pop(derived)
        documents.append(document)
    assert all(document == documents[0] for document in documents)
    assert documents[0]["seed"] == 3
    assert documents[0]["network"]["memory"] == "none"
    assert documents[0]["ppo"]["gamma"] == 1.0


def test_changes_reach_every_run_and_those_of_the_risk_only_runs_with_a_limit():
    plan = dataclasses.replace(TINY, changes=("ppo.n_epochs=2", "risk.cvar_lambda_max=7.0"))
    limited = bench.Job(bench.WORLDS["loose"], 0, plan).config
    free = bench.Job(bench.WORLDS["loose"], 0, plan, limited=False).config
    assert (limited.ppo.n_epochs, free.ppo.n_epochs) == (2, 2)
    assert (limited.risk.cvar_lambda_max, free.risk.cvar_lambda_max) == (7.0, 2.0)
    assert (limited.risk.cvar_use_constraint, free.risk.cvar_use_constraint) == (True, False)


def test_a_slack_limit_is_trained_with_and_without_it():
    worlds = [bench.WORLDS["loose"], KNOWN["stakes-8"]]
    planned = bench.jobs(worlds, range(2), TINY)
    assert [(job.world.name, job.seed, job.limited) for job in planned] == [
        ("loose", 0, True), ("loose", 0, False), ("loose", 1, True), ("loose", 1, False),
        ("stakes-8", 0, True), ("stakes-8", 1, True),
    ]  # fmt: skip
    assert len({job.key for job in planned}) == 6


def test_the_key_holds_the_world_the_settings_and_the_seed():
    job = bench.Job(KNOWN["stakes-8"], 0, TINY)
    others = [
        dataclasses.replace(job, seed=1),
        dataclasses.replace(job, world=KNOWN["stakes-4"]),
        dataclasses.replace(job, world=dataclasses.replace(job.world, levels=(0.0, 1.0))),
        dataclasses.replace(job, plan=dataclasses.replace(TINY, updates=3)),
        dataclasses.replace(job, plan=dataclasses.replace(TINY, changes=("ppo.n_epochs=2",))),
    ]
    assert len({job.key, *(other.key for other in others)}) == 6
    assert dataclasses.replace(job).key == job.key


def test_a_finished_run_is_not_trained_again(tmp_path, monkeypatch):
    planned = bench.jobs([KNOWN["one-bet-4"]], [0, 1], TINY)
    with RowLog.open(tmp_path / "rows") as kept:
        first = bench.run_all(planned[:1], processes=1, kept=kept)
    assert first[0].updates == 2
    assert first[0].best == pytest.approx(0.345)
    done = []
    real = bench.run
    monkeypatch.setattr(bench, "run", lambda job: done.append(job.seed) or real(job))
    with RowLog.open(tmp_path / "rows") as kept:
        both = bench.run_all(planned, processes=1, kept=kept)
    assert done == [1]
    assert both[0] == first[0]
    assert [r.seed for r in both] == [0, 1]


@pytest.mark.refusal
def test_a_row_of_another_command_is_refused(tmp_path):
    (tmp_path / "rows").write_text('{"key": "a", "score": 1.0}\n')
    with (
        RowLog.open(tmp_path / "rows") as kept,
        pytest.raises(ArtifactError, match=r"found line 1, .* unexpected keyword argument 'score'"),
    ):
        bench.run_all([], processes=1, kept=kept)


def test_names_are_worlds_or_groups():
    assert tuple(world.name for world in bench.named("known")) == tuple(KNOWN)
    assert [world.name for world in bench.named("bars, stakes-8")] == ["bars", "stakes-8"]
    assert len(bench.named(None)) == len(bench.WORLDS)


@pytest.mark.refusal
def test_an_unknown_world_is_refused():
    with pytest.raises(ArgumentError, match=r"found `steap`. Did you mean `steep`\?"):
        bench.named("steap")


# ---------------------------------------------------------------------------------------- verdicts


def test_a_limit_is_kept_within_five_percent_of_its_size():
    assert row(cvar=-8.4).kept
    assert not row(cvar=-8.41).kept
    assert row(limit=0.5, cvar=0.475).kept
    assert not row(limit=0.5, cvar=0.47).kept


def test_four_of_five_runs_must_keep_their_limit_and_three_of_five_in_every_world():
    rows = [row(seed=k, cvar=-9.0 if k < 2 else -8.0) for k in range(5)]
    rows += [row("stakes-4", seed=k, cvar=-4.0, limit=-4.0) for k in range(5)]
    result = claims(rows)
    kept = "limits are kept within 5 % of their size in at least 80 % of all runs"
    assert result[kept] == (True, "8 of 10")
    assert result["in no world in fewer than 3 of 5"] == (True, "least in stakes-8, 3 of 5")
    rows[2] = row(seed=2, cvar=-9.0)
    result = claims(rows)
    assert result[kept] == (False, "7 of 10")
    assert result["in no world in fewer than 3 of 5"] == (False, "least in stakes-8, 2 of 5")


def test_only_runs_that_keep_their_limit_count_for_the_mean():
    claim = "runs that keep their limit have at least 70 % of the best mean on average"
    rows = [row(mean=0.96), row(seed=1, mean=1.6 * 0.85), row(seed=2, mean=8.0, cvar=-30.0)]
    assert claims(rows)[claim] == (True, "72 %")
    rows[0] = row(mean=0.8)
    assert claims(rows)[claim] == (False, "68 %")
    assert claims([rows[2]])[claim] == (False, "0 %")


def test_a_warning_must_be_used():
    claim = "warning: the limit is kept in 4 of 5, with at least 80 % of the best mean"
    good = [
        row("warning", seed=k, mean=80.0, best=100.0, cvar=-150.0, limit=-150.0)
        for k in (1, 2, 3, 4)
    ]
    broken = row("warning", seed=0, mean=80.0, best=100.0, cvar=-200.0, limit=-150.0)
    assert claims([*good, broken])[claim] == (True, "4 of 5, 80 %")
    assert claims([*good[:3], broken, broken])[claim] == (False, "3 of 5, 80 %")
    timid = broken._replace(mean=70.0, cvar=-100.0)
    assert claims([*good, timid])[claim] == (False, "5 of 5, 78 %")


def test_a_slack_limit_may_cost_two_percent():
    claim = "loose: a slack limit costs at most 2 % of the mean without one"
    free = row("loose", limited=False, mean=10.0, limit=-40.0)
    assert claims([row("loose", mean=9.8, limit=-40.0), free])[claim] == (True, "98.0 %")
    assert claims([row("loose", mean=9.7, limit=-40.0), free])[claim] == (False, "97.0 %")
    assert claims([row("loose", mean=9.7, limit=-40.0)])[claim] == (None, "no runs without a limit")


def test_a_summary_holds_all_seeds_of_a_world():
    (line,) = bench.summaries([row(mean=0.8, cvar=-8.0), row(seed=1, mean=1.6, cvar=-10.0)])
    assert (line.world, line.best, line.kept) == ("stakes-8", 1.6, 1)
    assert str(line.mean) == "1.2 ± 0.5657"
    assert str(line.share) == "0.75 ± 0.35"
    assert str(line.cvar) == "-9 ± 1.414"


# ----------------------------------------------------------------------------------------- command


def test_the_command_prints_runs_a_table_and_verdicts(tmp_path):
    arguments = ["bench", "bets", "--worlds", "one-bet-4", "--seeds", "1", "--seed-base", "7"]
    files = ["--rows", str(tmp_path / "rows"), "--out", str(tmp_path / "out.json")]
    sizes = ["--updates", "1", "--change", "ppo.n_epochs=1"]
    result = CliRunner().invoke(app, [*arguments, *sizes, *files])
    written = json.loads((tmp_path / "out.json").read_text())
    assert [line["seed"] for line in written["rows"]] == [7]
    assert written["plan"]["changes"] == ["ppo.n_epochs=1"]
    passed = [verdict["passed"] for verdict in written["verdicts"]]
    assert result.exit_code == (0 if all(passed) else 1)
    assert "one-bet-4, limit -0.3, seed 7: mean" in result.output
    assert json.loads((tmp_path / "rows").read_text())["world"] == "one-bet-4"
