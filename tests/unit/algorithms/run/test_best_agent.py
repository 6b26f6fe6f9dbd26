"""Which agent of a run is kept: under a limit on its tail one that keeps it goes first."""

import math

import pytest
import torch

from learner_lab import aged, learner, script, settings
from oracles import risk as oracle
from stormsail.algorithms.config.risk import RiskConfig
from stormsail.algorithms.run.evaluate import Evaluation, _summary, evaluate
from stormsail.algorithms.run.folder import open_run
from stormsail.algorithms.run.records import Records
from stormsail.algorithms.run.tasks import binding
from stormsail.core.errors import ConfigError

LIMITED = {
    "risk.cvar_limit": -1.0, "risk.cvar_use_constraint": True, "validation.episodes": 200,
}  # fmt: skip


def seen(score, cvar, error=0.0):
    return Evaluation(score, 1.0, 64, 0, cvar=cvar, cvar_error=error)


@pytest.fixture
def records(tmp_path):
    config = settings()
    with open_run(tmp_path / "run", config, binding(config)) as folder:
        yield Records(folder)


def test_without_a_limit_the_higher_score_is_kept(records):
    evaluations = [seen(1.0, -9.0), seen(0.5, 0.0), seen(2.0, -99.0), seen(2.0, 0.0)]
    assert [records.add_evaluation(1, one) for one in evaluations] == [True, False, True, False]
    assert (records.best_score, records.best_breach) == (2.0, 0.0)


def test_an_agent_that_keeps_the_limit_is_better_than_any_that_does_not(records):
    """The limit is -1: broken by 2, 1, 1 with a higher score, kept, broken, kept twice."""
    evaluations = [
        seen(5.0, -3.0), seen(1.0, -2.0), seen(4.0, -2.0), seen(0.1, -1.0), seen(9.0, -1.5),
        seen(0.0, 0.0), seen(0.2, -0.5),
    ]  # fmt: skip
    kept = [
        records.add_evaluation(number, one, limit=-1.0) for number, one in enumerate(evaluations)
    ]
    assert kept == [True, True, True, True, False, False, True]
    assert (records.best_score, records.best_breach) == (0.2, 0.0)


@pytest.mark.parametrize("error", [0.0, 0.1, 9.0, math.nan])
def test_a_limit_is_kept_by_the_estimate_and_not_by_its_interval(error):
    """-1.2 breaks -1.01 by .19, however wide the interval; a single episode has none."""
    assert seen(0.0, -1.2, error).breach(-1.01) == pytest.approx(0.19)
    assert seen(0.0, -1.2, error).breach(-1.2) == 0.0
    assert seen(0.0, -1.2, error).breach(-1.3) == 0.0  # never negative: room is no merit
    assert seen(0.0, -1.2, error).breach(None) == 0.0


def test_a_tail_that_is_no_number_keeps_no_limit():
    assert seen(0.0, math.nan).breach(-1.0) == math.inf
    assert seen(0.0, -math.inf).breach(-1.0) == math.inf
    assert seen(0.0, math.nan).breach(None) == 0.0


def test_a_single_episode_breaks_a_limit_by_what_it_lost():
    result = _summary(torch.tensor([-0.7], dtype=torch.float64), torch.tensor([False]), 0.05)
    assert math.isnan(result.cvar_error)
    assert result.breach(-0.1) == pytest.approx(0.6)
    assert result.breach(-0.9) == 0.0


def test_most_evaluations_see_that_an_agent_breaks_its_limit_four_times_over():
    """Episodes that earn .02 or, one in fifty, lose 1: a true CVaR at 5 % of
    (.02 * -1 + .03 * .02) / .05 = -.388, against a limit of -.1.

    The estimate keeps the limit if at most floor(x) of n episodes crashed, where -x + (.05 n - x)
    .02 = -.1 * .05 n, so x = .12 * .05 n / 1.02: 1 of 256, and 0 of 64. By the binomial
    distribution that is .02**0 .98**256 + 256 * .02 * .98**255 = .0353, and .98**64 = .2745 with a
    quarter of them.
    """
    source = torch.Generator().manual_seed(0)
    for episodes, chance in ((256, 0.0353), (64, 0.2745)):
        kept = 0
        for _ in range(2000):
            crashed = torch.rand(episodes, generator=source) < 0.02
            returns = torch.where(crashed, -1.0, 0.02).double()
            kept += _summary(returns, crashed, 0.05).breach(-0.1) == 0.0
        error = math.sqrt(chance * (1.0 - chance) / 2000)
        assert kept / 2000 == pytest.approx(chance, abs=4.0 * error)


def test_what_is_not_a_number_is_never_kept(records):
    assert not records.add_evaluation(1, seen(math.nan, math.nan), limit=-1.0)
    assert records.best_score is None
    assert records.add_evaluation(2, seen(0.0, -5.0), limit=-1.0)


def test_the_kept_agents_breach_goes_on_with_a_resumed_run(records):
    records.add_evaluation(1, seen(3.0, -4.0), limit=-1.0)
    assert records.state()["records"]["best_breach"] == 3.0


def test_the_tail_of_an_evaluation_is_that_of_its_episodes():
    ppo = aged(learner(settings(), told=script(seed=4)))
    result = evaluate(ppo.task, ppo.agent, torch.Generator().manual_seed(3), alpha=0.3, max_steps=5)
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
    returns = total.double().tolist()
    assert result.cvar == pytest.approx(oracle.empirical_cvar(returns, 0.3), rel=1e-6)
    assert result.cvar_error == pytest.approx(oracle.empirical_cvar_error(returns, 0.3), rel=1e-6)


def test_only_a_constraint_on_whole_episodes_is_a_limit_of_the_kept_agent():
    assert settings().risk.episode_limit is None
    watched = settings(**{"risk.cvar_limit": -1.0}).risk
    assert watched.episode_limit is None
    held = settings(**LIMITED).risk
    assert held.episode_limit == -1.0
    parts = RiskConfig(
        cvar_limit=-1.0,
        cvar_use_constraint=True,
        cvar_quantity="step",
        cvar_policy_mode="state",
    )
    assert parts.episode_limit is None


@pytest.mark.refusal
def test_an_evaluation_that_cannot_tell_whether_the_limit_is_kept_is_refused():
    """10 of them must be in the worst 5 %: 200 are just enough."""
    assert settings(**LIMITED).validation.episodes == 200
    with pytest.raises(ConfigError) as caught:
        settings(**{**LIMITED, "validation.episodes": 199})
    assert (
        "`validation.episodes` must be at least 200 where `risk.cvar_use_constraint` is true, so "
        "that 10 of them are in a tail of 0.05 and the agent that is kept can be held to the "
        "limit, not 199; or set `validation.every_updates` to 0"
    ) in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "least"),
    [
        ({"risk.cvar_alpha": 0.3, "risk.cvar_min_tail_samples": 3}, 10),  # 3 / .3 is 10, not 11
        ({"risk.cvar_alpha": 0.3}, 34),
        ({"risk.cvar_alpha": 1.0}, 10),
        ({"risk.cvar_min_tail_samples": 13}, 260),
    ],
)
def test_the_least_number_of_episodes_follows_the_tail(changes, least):
    assert settings(**{**LIMITED, **changes, "validation.episodes": least})
    with pytest.raises(ConfigError, match=f"must be at least {least} "):
        settings(**{**LIMITED, **changes, "validation.episodes": least - 1})


@pytest.mark.parametrize(
    "changes",
    [
        {"validation.every_updates": 0},  # nothing is looked at
        {"risk.cvar_use_constraint": False},  # watched, not held
        {"risk.cvar_quantity": "step", "risk.cvar_policy_mode": "state", "ppo.n_steps": 64},
    ],
)
def test_few_episodes_are_enough_where_no_limit_chooses_the_kept_agent(changes):
    assert settings(**{**LIMITED, **changes, "validation.episodes": 1}).validation.episodes == 1
