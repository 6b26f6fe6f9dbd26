"""The tables of docs/evidence.md are those of the rows beside it."""

import json
from pathlib import Path

import pytest

from stormsail.bench import promotions
from stormsail.bench.bets import bets
from stormsail.bench.learner import learn, vgs
from stormsail.bench.risk import frontier, frontier_verdicts, limits, tails, tails_verdicts
from stormsail.bench.robust import robust

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "evidence.md").read_text().replace("−", "-")


def rows(name, kind):
    return [kind(**one) for one in json.loads((DOCS / "evidence" / name).read_text())["rows"]]


@pytest.mark.parametrize(
    ("name", "seeds"),
    [
        ("frontier.json", 5),
        ("frontier_600k.json", 5),
        ("frontier_unwarned.json", 5),
        ("penalties_600k.json", 5),
        ("frontier_critic.json", 5),
        ("frontier_margin.json", 5),
    ],
)
def test_every_kind_of_agent_stands_in_the_text_with_its_figures(name, seeds):
    lines = frontier_verdicts.summaries(rows(name, frontier.Row))
    assert {line.seeds for line in lines} == {seeds}
    for line in lines:
        if line.key.scale == 1.0:
            cells = f"| {line.mean} | {line.cvar.mean:.3f} ± {line.cvar.half:.3f} |"
            assert cells in TEXT, line.key


def test_every_case_of_the_tails_stands_in_the_text_with_its_figures():
    lines = tails_verdicts.summaries(rows("tails.json", tails.Tail))
    assert {len(line.tails) for line in lines} == {5}
    wanted = {("chain", case.name) for case in tails.CASES}
    wanted |= {
        (world, case.name)
        for world in tails.WORLDS[1:]
        for case in (tails.DEFAULT, tails.CATEGORICAL)
    }
    assert {(line.world, line.case) for line in lines} == wanted
    for line in lines:
        worst = max(tail.coverage for tail in line.tails)
        cells = f"| {line.coverage} | {worst:.2f} | {line.error.mean:.1f} ± "
        assert cells in TEXT, (line.world, line.case)


def lines(name):
    return [json.loads(line) for line in (DOCS / "evidence" / name).read_text().splitlines()]


def test_every_bare_task_stands_in_the_text_with_its_figures():
    scores: dict[str, list[float]] = {}
    for row in lines("bare_tasks.jsonl"):
        if row["learner"] == learn.OURS:
            scores.setdefault(row["name"].removeprefix("gym:"), []).append(row["score"])
    assert scores.keys() == learn.BARE_BARS.keys()
    for name, found in scores.items():
        assert len(found) == 5
        bar = learn.BARE_BARS[name]
        met = "met" if bar.met(found) else "**not met**"
        (line,) = [text for text in TEXT.splitlines() if text.startswith(f"| {name}")
                   and f"{bar}".replace("−", "-") in text and "M)" not in text.split("|")[1]
                   and f"| {sum(found) / 5:.1f} | {min(found):.1f} |" in text]  # fmt: skip
        assert f"{bar}: {met}" in line, name


def test_all_seeds_of_the_full_configuration_learn_the_pole():
    rows = sorted((row["seed"], row["score"]) for row in lines("full_cartpole.jsonl"))
    assert rows == [(seed, 500.0) for seed in range(910, 915)]


def test_robust_training_stands_in_the_text_with_its_figures():
    rows = [robust.RobustRow(**row) for line in lines("robust.jsonl") for row in line["rows"]]
    for line in robust.summaries(rows):
        assert {len(seeds.values) for seeds in line[1:]} == {5}
        cells = " | ".join(str(seeds) for seeds in line[1:])
        assert f"| {line.task}, {robust.RADII[line.task]} | {cells} |" in TEXT


def test_pendulum_in_units_of_the_task_stands_in_the_text_with_its_figures():
    found = lines("robust_pendulum.jsonl")
    rows = [robust.RobustRow(**row) for line in found for row in line["rows"]]
    (line,) = robust.summaries(rows)
    assert {len(seeds.values) for seeds in line[1:]} == {5}
    cells = " | ".join(str(seeds) for seeds in line[1:])
    assert f"| pendulum, 0.2, no memory | {cells} |" in TEXT


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("robust_rollout.jsonl", "entropy in both"),
        ("robust_rollout_plain.jsonl", "plain as it is"),
    ],
)
def test_forged_rollouts_stand_in_the_text_with_their_figures(name, words):
    found = lines(name)
    rows = [robust.RobustRow(**row) for line in found for row in line["rows"]]
    (line,) = robust.summaries(rows)
    assert {len(seeds.values) for seeds in line[1:]} == {5}
    cells = " | ".join(str(seeds) for seeds in line[1:])
    assert f"| pendulum, 0.2, {words} | {cells} |" in TEXT


def test_every_form_of_the_scaler_stands_in_the_text_with_its_figures():
    found = vgs.lines([vgs.from_json(row) for row in lines("vgs.jsonl")])
    assert {len(line.score.values) for line in found} == {10}
    for line in found:
        cells = (
            f"| {line.task} | {line.variant} | {line.score.mean:.4g} ± "
            f"{line.score.standard_error:.2g} | {line.factor:.3f} | {line.at_floor:.2f} |"
        )
        assert cells in TEXT
        if line.gain is not None:
            assert f"{line.gain.mean:+.4g} ± {line.gain.standard_error:.2g} |" in TEXT
    for verdict in vgs.verdicts(found):
        assert f" {verdict.measured.split(' ')[0]}" in TEXT


def test_every_world_of_bets_stands_in_the_text_with_its_figures():
    rows = [bets.Row(**row) for row in lines("bets.jsonl")]
    limited = [row for row in rows if row.limited]
    assert {row.world for row in limited} == bets.WORLDS.keys()
    for name in bets.WORLDS:
        own = [row for row in limited if row.world == name]
        assert len(own) == 5
        shares = [row.share for row in own]
        kept, mean = sum(row.kept for row in own), sum(row.cvar for row in own) / 5
        cells = (
            f"| `{name}` | {own[0].limit:g} | {own[0].best:.4g} | {mean:.4g} | "
            f"{min(row.cvar for row in own):.4g} | {kept} of 5 | {sum(shares) / 5:.2f} | "
            f"{min(shares):.2f} to {max(shares):.2f} |"
        )
        assert cells in TEXT, name
    assert f"Kept in {sum(row.kept for row in limited)} of 80, in every world in 4" in TEXT


def test_limits_on_real_bars_stand_in_the_text_with_their_tails():
    rows = sorted((limits.Row.parse(row) for row in lines("limits.jsonl")), key=lambda x: x.seed)
    for horizon, kept in (("week", 5), ("day", 5)):
        own = [row for row in rows if row.horizon == horizon]
        assert [row.seed for row in own] == list(range(880, 885))
        results = [row.result(limits.LIMIT) for row in own]
        assert sum(x.is_kept(own[0].limit) for x in results) == kept
    week = [row.result(limits.LIMIT).cvar for row in rows if row.horizon == "week"]
    assert f"({', '.join(f'{x:.3f}'.replace('0.', '.') for x in week)})" in TEXT


def test_critics_with_other_defaults_stand_in_the_text_with_their_gains():
    rows = lines("critic_defaults.jsonl")
    change = next(row["variant"] for row in rows if "factor=10" in row["variant"])
    for name in ("Acrobot-v1", "Pendulum-v1"):
        scores = {
            variant: {
                row["seed"]: row["score"]
                for row in rows
                if row["name"] == name and row["variant"] == variant
            }
            for variant in ("unchanged", change)
        }
        assert set(scores["unchanged"]) == set(scores[change]) == set(range(820, 825))
        gain = sum(scores[change][seed] - old for seed, old in scores["unchanged"].items()) / 5
        assert f"+{gain:.1f} (" in TEXT or f"+{gain:.0f} (" in TEXT, name


def test_every_promotion_stands_in_the_text():
    simulated = [promotions.Row(**row) for row in lines("promotions.jsonl")]
    rates = promotions.rates(simulated)
    assert {rate.runs for rate in rates} == {60}
    assert {row.seed for row in simulated} == set(range(30000, 30060))
    assert all(claim.passed for claim in promotions.verdicts(rates))

    def together(years, sharpe):
        own = [
            rate for rate in rates
            if (rate.bars, rate.sharpe, rate.trials) == (365 * years, sharpe, 1)
        ]  # fmt: skip
        return f"{sum(rate.promoted for rate in own)} of {sum(rate.runs for rate in own)}"

    for years in (1, 3, 5):
        cells = " | ".join(together(years, sharpe) for sharpe in (0.0, 0.5, 1.0, 2.0, 3.0))
        assert f"| {years} | {cells} |" in TEXT
    for process in ("clustered", "jumping", "repeating"):
        cells = " | ".join(
            f"{rate.sharpe:.2f}: {rate.promoted} of 60"
            for rate in rates
            if rate.planned and rate.process == process
        )
        assert f"| `{process}` | {cells} |" in TEXT
