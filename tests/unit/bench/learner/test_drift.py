"""`stormsail bench drift`: both ways on the same seeds, and the numbers are those of the run."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import typer

from stormsail.algorithms.config import TrainConfig
from stormsail.bench.learner import drift as bench
from stormsail.bench.seeds import Seeds
from stormsail.cli.bench import learner as command

ROOT = Path(__file__).resolve().parents[4]


def test_a_run_is_the_quickstart_but_for_its_length_and_evaluations():
    quickstart = TrainConfig.load(ROOT / "configs" / "quickstart.toml")
    ours = bench.Plan().config("between_rollouts", 0)
    free = {
        name: getattr(getattr(ours, section), field)
        for name in ("ppo.total_steps", "checkpoint.every_updates", "validation.every_updates")
        for section, field in [name.split(".")]
    }
    empty = {"observation.warmup_steps": 0}  # whose drift is measured
    assert ours == quickstart.replace(**free, **empty)
    assert free["ppo.total_steps"] == 49 * 64 * 64  # the first whole update at 200,000 or beyond
    assert quickstart.ppo.total_steps == 200_000


def test_modes_differ_in_one_setting():
    first, second = (bench.Plan().config(mode, 3) for mode in bench.MODES)
    assert first.observation.obs_stats_update == "between_rollouts"
    assert second.observation.obs_stats_update == "online"
    assert first == second.replace(**{"observation.obs_stats_update": "between_rollouts"})
    assert first.seed == second.seed == 3


@pytest.fixture(scope="module")
def quick():
    said = []
    threads = torch.get_num_threads()
    outcomes = bench.compare(bench.Plan.quick(), say=said.append)
    assert torch.get_num_threads() == threads
    return outcomes, said


def test_both_modes_run_with_every_seed(quick):
    outcomes, said = quick
    assert [(one.mode, one.seed) for one in outcomes] == [
        ("between_rollouts", 0), ("online", 0), ("between_rollouts", 1), ("online", 1),
    ]  # fmt: skip
    assert said[0] == f"between_rollouts, seed 0: score {outcomes[0].score:.4f}"
    for one in outcomes:
        for values in (one.mean_drift, one.std_drift, one.norm_before, one.norm_after):
            assert len(values) == 4
        assert math.isnan(one.mean_drift[0])  # nothing to drift from
        assert math.isfinite(one.score)
        known = [value for value in one.norm_after if not math.isnan(value)]
        assert known
        assert set(known) == {0.0}


def test_a_rollout_moves_the_statistics_equally_far_in_both_modes(quick):
    # What is scaled comes from the bars alone, whatever the policy does.
    outcomes, _ = quick
    frozen, online = outcomes[:2]
    assert frozen.mean_drift[1:] == pytest.approx(online.mean_drift[1:], rel=1e-9)
    assert frozen.norm_before != online.norm_before


def test_the_same_seed_gives_the_same_run_in_another_process(quick):
    outcomes, _ = quick
    plan = replace(bench.Plan.quick(), seeds=1)
    assert repr(bench.compare(plan, jobs=2, say=lambda _: None)) == repr(outcomes[:2])


def outcome(mode, seed, score):
    drift = (math.nan, 0.4, 0.2, 0.1 * (seed + 1))
    return bench.Outcome(
        mode, seed, mean_drift=drift, std_drift=tuple(2.0 * value for value in drift),
        norm_before=(math.nan, 1.0, 1.0, 3.0), norm_after=(0.0,) * 4, score=score,
    )  # fmt: skip


def spread(seeds):
    return seeds.mean, seeds.deviation


def test_rows_are_means_and_deviations_over_seeds_and_differences_on_the_same_seed():
    scores = {"between_rollouts": (1.0, 3.0), "online": (2.0, 6.0)}
    outcomes = [outcome(mode, seed, scores[mode][seed]) for mode in scores for seed in (1, 0)]
    frozen, online, less = bench.rows(outcomes)
    assert (frozen.name, online.name, less.name) == (
        "between_rollouts", "online", "online less frozen",
    )  # fmt: skip
    assert spread(frozen.score) == (2.0, math.sqrt(2.0))
    assert spread(online.score) == (4.0, math.sqrt(8.0))
    assert spread(less.score) == (2.0, math.sqrt(2.0))  # 1 and 3
    assert spread(frozen.mean_drift_first) == (0.4, 0.0)
    assert frozen.mean_drift_last.mean == pytest.approx(0.15)
    assert frozen.std_drift_last.mean == pytest.approx(0.3)
    assert spread(less.mean_drift_last) == (0.0, 0.0)
    assert spread(frozen.norm_before) == (3.0, 0.0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [((1.0, 2.0, 3.0, 5.0), 5.0), ((1.0,) * 6 + (2.0, 4.0), 3.0), ((1.0, 7.0), 7.0),
     ((0.0,) * 6 + (math.nan, 4.0), 4.0)],
)  # fmt: skip
def test_the_last_quarter_is_averaged_over_what_was_measured(values, expected):
    assert bench.late(values) == expected


def test_nothing_measured_is_not_a_number():
    assert math.isnan(bench.late((1.0, 1.0, 1.0, math.nan)))
    assert math.isnan(Seeds([1.0]).deviation)


def test_the_command_prints_and_writes_what_was_measured(quick, tmp_path, capsys, monkeypatch):
    outcomes, _ = quick
    monkeypatch.setattr(bench, "compare", lambda *_, **__: outcomes)
    out = tmp_path / "drift.json"
    command.drift(quick=True, out=out)
    written = json.loads(out.read_text())
    assert written["plan"]["updates"] == 4
    assert [row["name"] for row in written["rows"]] == [row.name for row in bench.rows(outcomes)]
    assert written["outcomes"][3]["score"] == outcomes[3].score
    assert set(command.DRIFT_LABELS) == set(bench.FIGURES)
    printed = capsys.readouterr().out
    assert "4 updates, 2 seeds" in printed
    assert str(bench.rows(outcomes)[0].score).split(" ")[0] in printed


def test_a_file_nowhere_and_a_single_update_are_refused_before_the_work(tmp_path):
    with pytest.raises(typer.BadParameter, match="Make it"):
        command.drift(out=tmp_path / "nowhere" / "drift.json")
    with pytest.raises(typer.BadParameter, match="Drift needs a before"):
        command.drift(updates=1)
