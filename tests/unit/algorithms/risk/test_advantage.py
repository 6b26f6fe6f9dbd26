"""The risk advantage of real rollouts, against loops over rows; and who gets a gradient from it."""

import dataclasses

import numpy as np
import pytest
import torch

from learner_lab import CRITICS, aged, learner, script, settings
from oracles import risk as risk_oracle
from oracles import risk_control as oracle
from stormsail.algorithms.risk.advantage import (
    Trace,
    predicted_cvar,
    predicted_distribution,
    risk_advantage,
)
from stormsail.algorithms.update.estimates import estimate

ALPHA = 0.4
DISTRIBUTIONS = ["quantile", "categorical"]


def played(critic, rounds=2, **changes):
    """Return learner, rollout and estimates that are neither the first nor in round units."""
    usual = {"ppo__gamma": 0.9, "target__steps": 3}
    config = settings(**CRITICS[critic], **{**usual, **changes})
    ppo = aged(learner(config, told=script(weights=(1.0, 0.5, 2.0))))
    for _ in range(rounds):
        ppo.env_state, rollout = ppo._collect()
    return ppo, rollout, estimate(ppo.agent, rollout, config)


def arrays(ppo, rollout, estimates):
    """Return everything that the loops need, in float64 and reward units."""
    names = ("return_so_far", "reward", "weight", "predicted")
    part = {name: getattr(rollout, name).double().numpy() for name in names}
    part |= {name: getattr(rollout, name).numpy() for name in ("ended", "terminated", "truncated")}
    part |= {
        "next": rollout.next_predicted.double().numpy(),
        "target": estimates.target.double().numpy(),
    }
    scale = ppo.agent.return_scale
    mean, std = float(scale.mean), float(scale.std)
    atoms = ppo.agent.network.critic.atoms.double().numpy() * std + mean
    if ppo.agent.spec.critic.kind == "categorical":
        part["own"] = oracle.categorical_distribution(part["predicted"], atoms)
        part["next"] = oracle.categorical_distribution(part["next"], atoms)
        return part, atoms
    part["own"] = oracle.quantile_distribution(part["predicted"], mean, std)
    part["next"] = oracle.quantile_distribution(part["next"], mean, std)
    return part, None


@pytest.mark.parametrize("critic", DISTRIBUTIONS)
def test_the_distribution_that_is_read_is_that_of_the_more_careful_critic_in_reward_units(critic):
    ppo, rollout, estimates = played(critic)
    part, _ = arrays(ppo, rollout, estimates)
    result = predicted_distribution(ppo.agent, rollout).double().numpy()
    np.testing.assert_allclose(result, part["own"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("critic", DISTRIBUTIONS)
@pytest.mark.spec("X3", "T-C3")
def test_the_budget_form_is_that_of_the_loop(critic):
    """b_t = nu - C_t: what the episode earned before this rollout counts."""
    ppo, rollout, estimates = played(critic)
    part, atoms = arrays(ppo, rollout, estimates)
    level = -0.8
    result = risk_advantage("budget", ppo.agent, rollout, estimates, alpha=ALPHA, level=level)
    expected = oracle.budget(
        part["target"], part["own"], part["return_so_far"], part["weight"], level, ALPHA, atoms
    )
    np.testing.assert_allclose(result.double().numpy(), expected, rtol=0, atol=2e-5)
    assert np.abs(expected).max() > 0.5
    assert np.abs(part["return_so_far"][0]).max() > 0.5
    without = oracle.budget(
        part["target"], part["own"], 0 * part["return_so_far"], part["weight"], level, ALPHA, atoms
    )
    assert np.abs(without - expected).max() > 0.1


@pytest.mark.parametrize("critic", DISTRIBUTIONS)
@pytest.mark.parametrize("lam", [0.0, 0.8, 1.0])
@pytest.mark.spec("X3", "T-C3")
def test_the_trace_form_is_that_of_the_loop(critic, lam):
    """Two rollouts long: it ends with episodes of both kinds and with the rollout."""
    ppo, rollout, estimates = played(critic)
    part, atoms = arrays(ppo, rollout, estimates)
    assert part["terminated"].any()
    assert part["truncated"].any()
    result = risk_advantage(
        "budget", ppo.agent, rollout, estimates, alpha=ALPHA, level=-0.8, trace=Trace(0.9, lam)
    )
    expected = oracle.budget_trace(part, -0.8, ALPHA, 0.9, lam, atoms)
    np.testing.assert_allclose(result.double().numpy(), expected, rtol=0, atol=5e-5)
    assert np.abs(expected).max() > 0.5
    plain = risk_advantage("budget", ppo.agent, rollout, estimates, alpha=ALPHA, level=-0.8)
    assert float((plain - result).abs().max()) > 0.1


def test_without_discount_full_traces_are_the_budget_form_of_monte_carlo_targets():
    ppo, rollout, estimates = played("quantile", ppo__gamma=1.0, target__kind="mc")
    options = {"alpha": ALPHA, "level": -0.8}
    plain = risk_advantage("budget", ppo.agent, rollout, estimates, **options)
    traced = risk_advantage(
        "budget", ppo.agent, rollout, estimates, **options, trace=Trace(1.0, 1.0)
    )
    assert float(plain.abs().max()) > 0.5
    torch.testing.assert_close(traced, plain, rtol=0.0, atol=5e-5)


@pytest.mark.parametrize("critic", DISTRIBUTIONS)
@pytest.mark.spec("X3")
def test_the_state_form_is_that_of_the_loop(critic):
    ppo, rollout, estimates = played(critic)
    part, atoms = arrays(ppo, rollout, estimates)
    result = risk_advantage("state", ppo.agent, rollout, estimates, alpha=ALPHA, level=9.0)
    expected = oracle.state(part["target"], part["own"], part["weight"], ALPHA, atoms)
    np.testing.assert_allclose(result.double().numpy(), expected, rtol=0, atol=2e-5)
    assert np.abs(expected).max() > 0.2


@pytest.mark.parametrize("critic", DISTRIBUTIONS)
def test_the_episode_form_is_that_of_the_loop(critic):
    ppo, rollout, estimates = played(critic)
    part, _ = arrays(ppo, rollout, estimates)
    result = risk_advantage("episode", ppo.agent, rollout, estimates, alpha=ALPHA, level=0.3)
    expected = oracle.episode(
        part["return_so_far"], part["reward"], part["ended"], part["weight"], 0.3, ALPHA
    )
    np.testing.assert_allclose(result.double().numpy(), expected, rtol=0, atol=2e-5)
    assert np.abs(expected).max() > 0.5
    used = part["weight"] > 0
    assert abs((expected * part["weight"])[used].sum()) < 1e-9


def test_the_episode_form_of_a_rollout_without_an_end_is_nothing():
    config = settings(**{"ppo.n_envs": 1, "ppo.batch_size": 1})
    ppo = learner(config, told=script(["." * 16]))
    ppo.env_state, rollout = ppo._collect()
    estimates = estimate(ppo.agent, rollout, config)
    result = risk_advantage("episode", ppo.agent, rollout, estimates, alpha=ALPHA, level=0.3)
    assert not bool(result.any())


def looped(mode, part, level, atoms):
    """Return the risk advantage of a rollout by the loops; `budget` with a trace of .8."""
    earned, weight = part["return_so_far"], part["weight"]
    if mode == "budget":
        return oracle.budget_trace(part, level, ALPHA, 0.9, 0.8, atoms)
    if mode == "target":
        return oracle.budget(part["target"], part["own"], earned, weight, level, ALPHA, atoms)
    if mode == "state":
        return oracle.state(part["target"], part["own"], weight, ALPHA, atoms)
    return oracle.episode(earned, part["reward"], part["ended"], weight, level, ALPHA)


@pytest.mark.parametrize("critic", DISTRIBUTIONS)
@pytest.mark.parametrize("mode", ["budget", "target", "state", "episode"])
@pytest.mark.spec("X3", "T-C7")
def test_the_risk_of_every_update_is_that_below_the_level_of_its_own_window(
    mode, critic, monkeypatch
):
    """By loops, from what the critics said before each update and the episodes so far.

    `target` is the budget form that reads the atoms of the critics' target.
    """
    size, trace = 16, "target" if mode == "target" else 0.8
    tail = {
        "risk.cvar_alpha": ALPHA,
        "risk.cvar_window": size,  # 10 or 11 episodes end in an update, so half of it is new
        "risk.cvar_min_samples": 12,
        "risk.cvar_min_tail_samples": 2,
        "risk.cvar_use_constraint": True,
        "risk.cvar_limit": 0.5,
        "risk.cvar_policy_mode": "budget" if mode == "target" else mode,
        "risk.cvar_trace": trace,
        "ppo.gamma": 0.9,
        "target.steps": 3,
    }
    ppo = aged(
        learner(settings(**CRITICS[critic], **tail), told=script(weights=(1.0, 0.5), seed=4))
    )
    inner, seen = ppo.risk.act, []

    def act(rollout, estimates, *rest, **options):
        known = arrays(ppo, rollout, estimates)  # now: the update will change scale and critics
        seen.append((*known, inner(rollout, estimates, *rest, **options)))
        return seen[-1][-1]

    monkeypatch.setattr(ppo.risk, "act", act)
    for _ in range(6):
        ppo.update()
    outcomes, levels = [], []
    for part, atoms, report in seen:
        outcomes += oracle.finished(part["return_so_far"], part["reward"], part["ended"])
        level = risk_oracle.value_at_risk(oracle.window(outcomes, size), ALPHA)
        result = report.risk.double().numpy()
        if not report.tail.is_ready:
            assert not result.any()
            continue
        levels.append(level)
        expected = looped(mode, part, level, atoms)
        np.testing.assert_allclose(result, expected, rtol=0, atol=5e-5)
        assert np.abs(expected).max() > 0.1
    assert len(levels) == 5
    assert max(levels) - min(levels) > 0.1  # one that stood still would be seen


@pytest.mark.parametrize("mode", ["budget", "state", "episode"])
def test_a_row_without_weight_has_no_risk_advantage_whatever_stands_in_it(mode):
    ppo, rollout, estimates = played("quantile")
    ignored = rollout.weight <= 0.0
    assert bool(ignored.any())
    spoilt = estimates.target.clone()
    spoilt[ignored] = torch.nan
    estimates = dataclasses.replace(estimates, target=spoilt)
    result = risk_advantage(mode, ppo.agent, rollout, estimates, alpha=ALPHA, level=0.0)
    assert bool(result.isfinite().all())
    assert not bool(result[ignored].any())


def test_a_trace_does_not_carry_what_stands_in_a_row_without_weight():
    ppo, rollout, estimates = played("quantile")
    ignored = rollout.length == 0
    assert bool(ignored[1:].any())
    spoilt = rollout.reward.masked_fill(ignored, torch.nan)
    options = {"alpha": ALPHA, "level": 0.0, "trace": Trace(0.9, 0.9)}
    clean = risk_advantage("budget", ppo.agent, rollout, estimates, **options)
    rollout = dataclasses.replace(rollout, reward=spoilt)
    result = risk_advantage("budget", ppo.agent, rollout, estimates, **options)
    assert not bool(result[ignored].any())
    assert torch.equal(result, clean)


@pytest.mark.parametrize("critic", DISTRIBUTIONS)
def test_the_tail_that_is_predicted_is_that_of_all_starts_mixed(critic):
    ppo, rollout, estimates = played(critic)
    part, atoms = arrays(ppo, rollout, estimates)
    starts = (rollout.length == 1).numpy()
    assert starts.sum() > 2
    expected = oracle.pooled_cvar(part["own"], starts, ALPHA, atoms)
    result = predicted_cvar(ppo.agent, rollout, alpha=ALPHA, estimator="dirac")
    assert result == pytest.approx(expected, abs=1e-5)
    means = [
        oracle.pooled_cvar(part["own"], starts & (np.arange(8) == b), ALPHA, atoms)
        for b in range(8)
    ]
    assert np.nanmean(means) != pytest.approx(expected, abs=1e-3)  # a mean of tails is another


def test_the_very_first_row_of_a_run_is_a_start_too():
    """Its memory is fresh already, so it carries no reset flag."""
    ppo = learner()
    ppo.env_state, rollout = ppo._collect()
    assert not bool(rollout.reset[0].any())
    assert bool((rollout.length[0] == 1).all())


def test_without_a_start_nothing_is_predicted():
    ppo, _, _ = played("quantile")
    config = settings(**{"ppo.n_envs": 1, "ppo.batch_size": 1})
    ppo = learner(config, told=script(["." * 32]))
    for _ in range(2):
        ppo.env_state, rollout = ppo._collect()
    assert np.isnan(predicted_cvar(ppo.agent, rollout, alpha=ALPHA, estimator="dirac"))
