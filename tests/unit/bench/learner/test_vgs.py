"""`stormsail bench vgs`: runs that wait for one another, rows that survive, differences by hand."""

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stormsail.bench import campaign
from stormsail.bench.learner import vgs as bench
from stormsail.cli.main import app
from stormsail.core.errors import ArtifactError, ChoiceError

CONFIGS = Path(__file__).resolve().parents[4] / "configs"
STEPS = 1024
"""Two updates of 16 steps each: the scaler never leaves its warm-up."""


def row(task="cartpole", variant="off", seed=1, score=1.0, **more):
    fields = {
        "steps": 10, "settings": "s", "rate": 1e-3, "factor": 1.0, "at_floor": 0.0, "seconds": 1.0,
    }  # fmt: skip
    return bench.Row(task=task, variant=variant, seed=seed, score=score, **{**fields, **more})


def planned(*, tasks=("cartpole",), seeds=(1,), **more):
    return bench.jobs(tasks, seeds, configs=CONFIGS, **more)


# ------------------------------------------------------------------------------------- the plan


def test_every_variant_of_every_task_and_seed_is_planned_once():
    jobs = planned(tasks=tuple(bench.TASKS), seeds=range(1000, 1010))
    assert len(jobs) == 4 * 10 * 7 == len({(j.task, j.variant, j.seed) for j in jobs})
    with pytest.raises(ChoiceError, match="tasks"):
        planned(tasks=("cartpool",))


def test_variants_differ_in_the_scaler_alone_and_matched_ones_in_the_rate():
    off, elementwise, mean, total, absolute, rate, other = planned()
    chosen = [bench.settings(job).vgs for job in (elementwise, mean, total, absolute)]
    assert [(one.enabled, one.statistic, one.reference) for one in chosen] == [
        (True, "elementwise", "median"),
        (True, "mean", "median"),
        (True, "total", "median"),
        (True, "elementwise", "absolute"),
    ]
    plain = bench.settings(off)
    assert not plain.vgs.enabled
    waiting = bench.Campaign([rate, other])
    assert waiting.ready() == []
    (matched,) = waiting.add(row(variant="elementwise", factor=0.75))
    assert matched.variant == "rate of elementwise"
    settings = bench.settings(matched)
    assert settings.ppo.learning_rate == pytest.approx(0.75e-3, rel=1e-12)
    assert settings.replace(**{"ppo.learning_rate": 1e-3}) == plain
    assert waiting.add(row(variant="elementwise absolute", seed=2)) == []


def test_every_seed_of_the_market_has_its_own_bars_and_the_same_digest():
    first, second = (planned(tasks=("ar1 market",), seeds=(seed,))[0] for seed in (1, 2))
    assert [bench.settings(job).task.data.world_seed for job in (first, second)] == [1, 2]
    assert bench.digest(first) == bench.digest(second)
    shorter = planned(tasks=("ar1 market",), steps=100)[0]
    assert bench.digest(shorter) != bench.digest(first)


# ------------------------------------------------------------------------------------- the rows


def append_row(file, fields):
    with campaign.RowLog.open(file) as log:
        log.append(fields)


def test_rows_are_lines_and_a_torn_last_one_is_written_again(tmp_path):
    file = tmp_path / "rows.jsonl"
    assert campaign.read_rows(file) == []
    append_row(file, {"a": 1})
    with file.open("a") as stream:
        stream.write('{"a": 2')
    assert campaign.read_rows(file) == [{"a": 1}]
    append_row(file, {"a": 3})
    assert campaign.read_rows(file) == [{"a": 1}, {"a": 3}]
    assert file.read_text() == '{"a": 1}\n{"a": 3}\n'


@pytest.mark.parametrize("line", ["nonsense", "[1]"])
def test_a_line_that_is_no_row_is_refused_by_its_number(tmp_path, line):
    file = tmp_path / "rows.jsonl"
    file.write_text(f'{{"a": 1}}\n{line}\n')
    with pytest.raises(ArtifactError, match="line 2, "):
        campaign.read_rows(file)
    with pytest.raises(ArtifactError, match="bench vgs"):
        bench.from_json({"a": 1})


def test_an_interrupted_campaign_does_what_is_missing_and_no_more(monkeypatch):
    jobs = planned(seeds=(1, 2))
    started = []

    def run(job):
        started.append((job.variant, job.seed, job.factor))
        return row(job.task, job.variant, job.seed, settings=bench.digest(job), factor=0.5)

    monkeypatch.setattr(bench, "run", run)
    done = bench.run_all(jobs[:7], [], workers=1, keep=lambda _: None)
    assert len(done) == 7
    assert started[-2:] == [
        ("rate of elementwise", 1, 0.5),
        ("rate of elementwise absolute", 1, 0.5),
    ]
    assert [factor for *_, factor in started[:5]] == [1.0] * 5
    started.clear()
    kept = []
    rest = bench.run_all(jobs, done[:-1], workers=1, keep=kept.append)
    assert len(rest) == 14
    assert len(kept) == len(started) == 8
    assert ("rate of elementwise absolute", 1, 0.5) in started
    started.clear()
    assert bench.run_all(jobs, rest, workers=1, keep=kept.append) == rest
    assert started == []
    foreign = [row(settings="other")]
    bench.run_all(jobs[:1], foreign, workers=1, keep=kept.append)
    assert started == [("off", 1, 1.0)]


# ---------------------------------------------------------------------------------- the verdict


def sample():
    scores = {
        "off": [10.0, 20.0, 30.0],
        "elementwise": [13.0, 22.0, 31.0],
        "rate of elementwise": [10.0, 20.0, 29.0],
    }
    return [
        row(variant=variant, seed=seed, score=score, factor=0.8 if variant == "elementwise" else 1)
        for variant, values in scores.items()
        for seed, score in enumerate(values)
    ]


def test_differences_are_paired_and_in_standard_errors():
    lines = {line.variant: line for line in bench.lines(sample())}
    line = lines["elementwise"]
    assert line.gain.values == (3.0, 2.0, 1.0)
    assert line.gain.standard_error == pytest.approx(1.0 / math.sqrt(3.0))
    assert bench.in_errors(line.gain) == pytest.approx(2.0 * math.sqrt(3.0))
    assert line.over_rate.values == (3.0, 2.0, 2.0)
    assert line.factor == pytest.approx(0.8)
    assert lines["off"].gain is None
    assert lines["rate of elementwise"].over_rate is None
    assert lines["rate of elementwise"].gain.values == (0.0, 0.0, -1.0)


def test_a_run_that_failed_is_counted_and_its_pair_left_out():
    rows = [*sample(), row(variant="off", seed=3, score=None, reason="diverged")]
    rows.append(row(variant="elementwise", seed=3, score=99.0))
    lines = {line.variant: line for line in bench.lines(rows)}
    assert lines["off"].failed == 1
    assert lines["elementwise"].gain.values == (3.0, 2.0, 1.0)


def test_tasks_are_pooled_in_standard_errors():
    seeds = bench.Seeds
    assert bench.pooled([seeds([1.0, 3.0]), seeds([-1.0, 3.0])]) == pytest.approx(
        (2.0 + 0.5) / math.sqrt(2.0)
    )
    assert bench.pooled([seeds([0.0, 0.0])]) == 0.0
    assert bench.in_errors(seeds([-1.0, -1.0])) == -math.inf
    words = {verdict.claim: verdict for verdict in bench.verdicts(bench.lines(sample()))}
    assert set(words) == {
        "elementwise less off",
        "elementwise less its rate",
        "rate of elementwise less off",
    }
    assert words["elementwise less off"].measured.startswith("+3.46 standard errors over 1 tasks")
    assert words["elementwise less off"].passed is None


# ----------------------------------------------------------------------------------- the command


def command(file, *more):
    options = ["--tasks", "cartpole", "--seeds", "2", "--steps", str(STEPS), "--episodes", "2"]
    return CliRunner().invoke(
        app, ["bench", "vgs", "--rows", str(file), "--configs", str(CONFIGS), *options, *more]
    )


def test_the_command_continues_its_rows_and_judges_them_without_training(tmp_path, monkeypatch):
    real, file = bench.run, tmp_path / "rows.jsonl"
    count = []

    def interrupted(job):
        if len(count) == 3:
            raise KeyboardInterrupt
        count.append(job)
        return real(job)

    monkeypatch.setattr(bench, "run", interrupted)
    assert command(file).exit_code != 0
    assert len(campaign.read_rows(file)) == 3
    count.clear()
    monkeypatch.setattr(bench, "run", lambda job: (count.append(job), real(job))[1])
    result = command(file)
    assert result.exit_code == 0, result.output
    rows = [bench.from_json(fields) for fields in campaign.read_rows(file)]
    assert len(count) == 11
    assert len({one.key for one in rows}) == len(rows) == 14
    # in its warm-up the scaler has the factor 1, so all of them are one run
    for seed in (1000, 1001):
        scores = {one.score for one in rows if one.seed == seed}
        assert len(scores) == 1
        assert {(one.factor, one.rate) for one in rows} == {(1.0, 1e-3)}
    count.clear()
    assert command(file).exit_code == 0
    out = tmp_path / "figures.json"
    judged = command(file, "--judge", "--out", str(out))
    assert judged.exit_code == 0
    assert "elementwise less off: +0.00 standard errors over 1 tasks together" in judged.output
    assert count == []
    assert len(json.loads(out.read_text())["rows"]) == 14


def test_rows_of_two_settings_are_not_judged_together(tmp_path):
    file = tmp_path / "rows.jsonl"
    assert "found none" in command(file, "--judge").output
    from dataclasses import asdict

    for settings in ("a", "b"):
        append_row(file, asdict(row(settings=settings)))
    with pytest.raises(ArtifactError, match="same settings"):
        bench.check_alike([bench.from_json(fields) for fields in campaign.read_rows(file)])
    assert command(file, "--judge").exit_code != 0
