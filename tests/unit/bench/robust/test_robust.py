"""Robust training beside plain training: jobs, paired differences, and rows of a tiny campaign."""

import json
from dataclasses import replace

import pytest

from attack_lab import settings, subject
from command_lab import forked
from oracles import attack as oracle
from stormsail.bench.robust.attacks import Plan, measured
from stormsail.bench.robust.robust import (
    CHANGED,
    PLAIN,
    UNITS,
    RobustRow,
    jobs,
    summaries,
    verdicts,
)
from stormsail.core.errors import ChoiceError, RangeError

PLAN = Plan(episodes=4)


def planned(**options):
    wanted = {"tasks": ["pendulum"], "seeds": [0, 1], "overrides": ["ppo.gamma=0.9"]}
    wanted |= {"attacks": ["mad"], "epsilon": 0.1, "plan": PLAN, **options}
    tasks, seeds, overrides = (wanted.pop(key) for key in ("tasks", "seeds", "overrides"))
    return jobs(tasks, seeds, overrides, **wanted)


def test_each_seed_has_a_plain_and_a_changed_agent_that_differ_in_the_change_alone():
    made = planned(steps=1000)
    assert [(job.variant, job.seed) for job in made] == [
        (PLAIN, 0), (CHANGED, 0), (PLAIN, 1), (CHANGED, 1),
    ]  # fmt: skip
    first, second = made[:2]
    assert (first.config.ppo.gamma, second.config.ppo.gamma) == (0.99, 0.9)
    assert second.config.replace(**{"ppo.gamma": 0.99}) == first.config
    assert len({job.key for job in made}) == 4
    assert made[0].key != planned(steps=1000, epsilon=0.2)[0].key


def test_radius_and_adversary_are_those_of_the_task_unless_given():
    mode = 'adversary.mode="kl_reg"'
    both = planned(tasks=["pendulum", "regime"], seeds=[3], overrides=[mode], epsilon=None)
    assert [job.epsilon for job in both] == [0.4, 0.4, 0.8, 0.8]
    adversaries = [job.config.adversary for job in both]
    assert [(each.mode, each.epsilon, each.robust_kl_coef) for each in adversaries] == [
        ("off", 0.075, 0.1), ("kl_reg", 0.3, 0.3), ("off", 0.075, 0.1), ("kl_reg", 0.8, 0.005),
    ]  # fmt: skip
    given = planned(overrides=[mode, "adversary.robust_kl_coef=0.5"], epsilon=0.2)[1]
    adversary = given.config.adversary
    assert (given.epsilon, adversary.epsilon, adversary.robust_kl_coef) == (0.2, 0.3, 0.5)
    rollouts = planned(overrides=['adversary.mode="rollout"'])[1].config.adversary
    assert (rollouts.epsilon, rollouts.robust_kl_coef) == (0.075, 0.1)  # has no weight


def test_both_agents_of_a_pair_are_attacked_in_units_of_the_task():
    pair = planned(seeds=[0])
    assert [job.plan.units for job in pair] == [tuple(UNITS["pendulum"].items())] * 2
    assert set(UNITS["pendulum"]) == {"cos_angle", "sin_angle", "angular_velocity"}
    own = planned(seeds=[0], own_units=True)
    assert [job.plan for job in own] == [PLAN, PLAN]
    assert not {job.key for job in pair} & {job.key for job in own}
    market = planned(tasks=["regime"], seeds=[0])  # bars are the same for every agent
    assert [job.plan for job in market] == [PLAN, PLAN]


def test_attacks_are_as_large_as_the_units_say():
    config = settings("Pendulum-v1")
    _, agent, _ = subject()
    small, own, large = (
        measured(agent, config, "random", 0.5, replace(PLAN, units=units)).changed
        for units in ((("sin_angle", 1e-6), ("cos_angle", 1e-6), ("angular_velocity", 1e-6)), (),
                      (("sin_angle", 50.0),))
    )  # fmt: skip
    assert small < 1e-5 < own < large


def test_differences_are_those_of_pairs():
    clean = {PLAIN: (10.0, 30.0, 20.0), CHANGED: (9.0, 28.0, 17.0)}
    attacked = {PLAIN: (1.0, 5.0, 3.0), CHANGED: (8.0, 14.0, 11.0)}
    rows = [
        RobustRow("pendulum", name, seed, clean[name][seed], ("mad", "pgd"),
                  (attacked[name][seed] + 1.0, attacked[name][seed]))
        for name in (PLAIN, CHANGED)
        for seed in range(3)
    ]  # fmt: skip
    (line,) = summaries(rows)
    assert line.cost.values == (1.0, 2.0, 3.0)
    assert line.gain.values == (7.0, 9.0, 8.0)
    assert line.plain_worst.values == attacked[PLAIN]
    assert line.gain.half == pytest.approx(oracle.t_half([7.0, 9.0, 8.0]))
    (verdict,) = verdicts([line])
    assert verdict.passed is True
    reversed_rows = [
        row._replace(variant=PLAIN if row.variant == CHANGED else CHANGED) for row in rows
    ]
    assert verdicts(summaries(reversed_rows))[0].passed is False


def test_a_campaign_goes_on_from_its_rows(tmp_path):
    rows = tmp_path / "rows.jsonl"
    options = (
        "bench", "robust", "--tasks", "pendulum", "--seeds", 2, "--steps", 64, "--episodes", 2,
        "--attacks", "random", "--change", "ppo.gamma=0.9", "--set", "ppo.n_envs=2",
        "--set", "ppo.n_steps=16", "--rows", rows, "--out", tmp_path / "out.json",
    )  # fmt: skip
    first = forked(*options)
    assert first.returncode in (0, 1), first.stderr
    lines = rows.read_bytes().splitlines(keepends=True)
    assert len(lines) == 4
    figures = json.loads((tmp_path / "out.json").read_text())
    rows.write_bytes(b"".join(lines[:3]))
    again = forked(*options, "--force")
    assert again.stdout.count("clean ") - first.stdout.count("clean ") == -3
    assert rows.read_bytes() == b"".join(lines)
    assert json.loads((tmp_path / "out.json").read_text()) == figures


@pytest.mark.refusal
def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ChoiceError, match="Did you mean `pendulum`"):
        planned(tasks=["pendulums"])
    with pytest.raises(ChoiceError, match="an attack must be one of"):
        planned(attacks=["none"])
    with pytest.raises(RangeError, match="must change a setting"):
        planned(overrides=[])
    with pytest.raises(RangeError, match="a positive radius"):
        planned(epsilon=0.0)
