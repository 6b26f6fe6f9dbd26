"""Which agent of a run is kept: under a limit on its tail one that keeps it goes first."""

import math

import pytest
import torch

from learner_lab import aged, learner, script, settings
from oracles import risk as oracle
from stormsail.algorithms.config_risk import RiskConfig
from stormsail.algorithms.greedy import Judged, judge
from stormsail.algorithms.records import Records
from stormsail.algorithms.run_folder import open_run
from stormsail.algorithms.task_factory import binding


def seen(score, cvar, error=0.0):
    return Judged(score, 1.0, 64, 0, cvar=cvar, cvar_error=error)


@pytest.fixture
def records(tmp_path):
    config = settings()
    with open_run(tmp_path / "run", config, binding(config)) as folder:
        yield Records(folder)


def test_without_a_limit_the_higher_score_is_kept(records):
    looks = [seen(1.0, -9.0), seen(0.5, 0.0), seen(2.0, -99.0), seen(2.0, 0.0)]
    assert [records.tried(1, one) for one in looks] == [True, False, True, False]
    assert (records.best_score, records.best_breach) == (2.0, 0.0)


def test_an_agent_that_keeps_the_limit_is_better_than_any_that_does_not(records):
    """The limit is -1: broken by 2, 1, 1 with a higher score, kept, broken, kept twice."""
    looks = [
        seen(5.0, -3.0), seen(1.0, -2.0), seen(4.0, -2.0), seen(0.1, -1.0), seen(9.0, -1.5),
        seen(0.0, 0.0), seen(0.2, -0.5),
    ]  # fmt: skip
    kept = [records.tried(number, one, limit=-1.0) for number, one in enumerate(looks)]
    assert kept == [True, True, True, True, False, False, True]
    assert (records.best_score, records.best_breach) == (0.2, 0.0)


def test_a_tail_whose_interval_reaches_the_limit_keeps_it():
    """-1.2 with a standard error of 0.1 lies within 1.96 of them of -1.01 and not of -1."""
    assert seen(0.0, -1.2, 0.1).breach(-1.01) == 0.0
    assert seen(0.0, -1.2, 0.1).breach(-1.0) == pytest.approx(0.2)
    assert seen(0.0, -1.2, 0.1).breach(None) == 0.0


def test_what_is_not_a_number_is_never_kept(records):
    assert not records.tried(1, seen(math.nan, math.nan), limit=-1.0)
    assert records.best_score is None
    assert records.tried(2, seen(0.0, -5.0), limit=-1.0)


def test_the_kept_agents_breach_goes_on_with_a_resumed_run(records):
    records.tried(1, seen(3.0, -4.0), limit=-1.0)
    assert records.state()["records"]["best_breach"] == 3.0


def test_the_tail_of_a_look_is_that_of_its_episodes():
    ppo = aged(learner(settings(), told=script(seed=4)))
    found = judge(ppo.task, ppo.agent, torch.Generator().manual_seed(3), alpha=0.3, max_steps=5)
    memory = ppo.agent.initial_memory(ppo.task.batch)
    total, running = torch.zeros(ppo.task.batch), torch.ones(ppo.task.batch, dtype=torch.bool)
    generator = torch.Generator().manual_seed(3)
    state, shown = ppo.task.reset(generator)
    for _ in range(5):
        chosen = ppo.agent.decide(shown, memory, deterministic=True)
        state, step = ppo.task.step(state, chosen.action, generator)
        shown, memory = step.observation, chosen.memory
        total += torch.where(running, step.reward, 0.0)
        running &= ~(step.terminated | step.truncated)
    earned = total.double().tolist()
    assert found.cvar == pytest.approx(oracle.empirical_cvar(earned, 0.3), rel=1e-6)
    assert found.cvar_error == pytest.approx(oracle.empirical_cvar_error(earned, 0.3), rel=1e-6)


def test_only_a_constraint_on_whole_episodes_is_a_limit_of_the_kept_agent():
    assert settings().risk.episode_limit is None
    watched = settings(**{"risk.cvar_limit": -1.0}).risk
    assert watched.episode_limit is None
    held = settings(**{"risk.cvar_limit": -1.0, "risk.cvar_use_constraint": True}).risk
    assert held.episode_limit == -1.0
    parts = RiskConfig(
        cvar_limit=-1.0,
        cvar_use_constraint=True,
        cvar_quantity="step",
        cvar_policy_mode="state",
    )
    assert parts.episode_limit is None
