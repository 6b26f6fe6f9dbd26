"""Who feels the tail: the actor through its advantage, the critics not at all; the old term, never
the actor."""

import dataclasses

import pytest
import torch

from learner_lab import CRITICS, aged, learner, script, settings
from oracles import risk_control as oracle
from stormsail.algorithms.risk.gradient import risk_gradient_norm
from stormsail.algorithms.update.losses import batch_sums

TAIL = {
    "risk.form": "budget",
    "risk.cvar_alpha": 0.3,
    "risk.cvar_min_samples": 4,
    "risk.cvar_min_tail_samples": 1,
    "risk.cvar_use_constraint": True,
    "risk.cvar_limit": 0.5,
    "risk.cvar_log_gradient": True,
    "validation.every_updates": 0,
    "ppo.learning_rate": 1e-6,
    "ppo.learning_rate_final": 1e-6,
    "ppo.optimizer_lr_min": 0.0,
}
ONLY = {"vf_coef": 0.0, "ent_coef": 0.0, "kl_beta": 0.0, "bc_coef": 0.0, "clips_values": False}
ACTOR = ("actor_body.", "actor_last.")
DISTRIBUTIONS = ["quantile", "categorical"]


def updated(**changes):
    """Return a learner and its last update; it barely moved, so ratios are still 1."""
    told = script(weights=(1.0, 0.5), seed=4)
    ppo = aged(learner(settings(**{**TAIL, **changes}), told=told))
    ppo.update()
    return ppo, ppo.update()


def updated_once():
    """Return the update before that of `updated`."""
    ppo = aged(learner(settings(**TAIL), told=script(weights=(1.0, 0.5), seed=4)))
    return ppo.update()


def gradients(ppo, update, now, advantage):
    """Return the gradient of the mean loss of a whole rollout by parameter, 0 for none."""
    data = ppo._batch(
        update.rollout, update.predicted, advantage, update.target, update.risk.options
    )
    ppo.optimizer.zero_grad(set_to_none=True)
    sums = batch_sums(ppo.agent, data, now, ppo.config, torch.Generator().manual_seed(0))
    (sums.loss / sums.weight).backward()
    named = ppo.agent.network.named_parameters()
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in named}


def length(result, *starts):
    parts = [g.double().square().sum() for name, g in result.items() if name.startswith(starts)]
    assert parts
    return float(torch.stack(parts).sum().sqrt())


@pytest.mark.parametrize("critic", DISTRIBUTIONS)
@pytest.mark.spec("T-C3", "X3", "S3-3")
def test_cvar_constraint_gradient_flow(critic):
    """The audit asked that quantiles stay attached in the constraint, so that it has a gradient.

    That trains the critics to be optimistic. Asserted instead: the risk term reaches every layer of
    the actor through sampled returns, carries no gradient itself, and gives the critics none.
    """
    ppo, update = updated(**CRITICS[critic])
    assert update.risk.multiplier > 0.0
    assert not update.risk.risk.requires_grad
    now = update.now._replace(**ONLY, trains_policy=True)
    result = gradients(ppo, update, now, update.risk.risk)
    assert length(result, "critic.") == 0.0
    for name, gradient in result.items():
        if name.startswith(ACTOR) or name.startswith("trunk."):
            assert float(gradient.abs().max()) > 0.0, name


@pytest.mark.parametrize("critic", DISTRIBUTIONS)
@pytest.mark.parametrize("separate", [False, True], ids=["shared memory", "own memory"])
@pytest.mark.spec("T-C3", "X3")
def test_the_old_term_moves_critics_and_never_the_actor(critic, separate):
    ppo, update = updated(
        **CRITICS[critic],
        **{"risk.cvar_policy_mode": "critic_legacy", "network.enable_critic_lstm": separate},
    )
    assert update.now.legacy_risk == update.risk.legacy == update.risk.multiplier > 0.0
    assert torch.equal(update.mixed, update.estimates.raw_advantage)
    now = update.now._replace(**ONLY, trains_policy=False)
    result = gradients(ppo, update, now, update.advantage)
    assert length(result, *ACTOR) == 0.0
    assert length(result, "critic.") > 0.0
    assert (length(result, "trunk.") == 0.0) == separate


def test_the_old_term_teaches_optimism():
    """A step along it raises the tail that the critics predict, whatever happened."""
    ppo, update = updated(**{"risk.cvar_policy_mode": "critic_legacy"})
    now = update.now._replace(**ONLY, trains_policy=False)
    result = gradients(ppo, update, now, update.advantage)
    before = update.risk.predicted
    with torch.no_grad():
        for name, parameter in ppo.agent.network.named_parameters():
            parameter.sub_(1e-3 * result[name])
    data = ppo._batch(
        update.rollout, update.predicted, update.advantage, update.target, update.risk.options
    )
    said = ppo.agent.network(data.observation, data.memory, data.reset).critic
    rollout = dataclasses.replace(update.rollout, predicted=said.detach())
    report = ppo.risk.act(rollout, update.estimates, 0.5, ppo.agent)
    assert report.predicted > before


@pytest.mark.parametrize("critic", DISTRIBUTIONS)
@pytest.mark.spec("X21", "S4-R2", "T-M5")
def test_the_norm_is_that_of_the_risk_term_alone(critic):
    """The same number by another way: a loss of nothing but the risk's share."""
    ppo, update = updated(**CRITICS[critic])
    data = ppo._batch(
        update.rollout, update.predicted, update.advantage, update.target, update.risk.options
    )
    part = update.risk.risk * 0.37
    now = update.now._replace(**ONLY, trains_policy=True, clip_range=1e3)
    alone = length(gradients(ppo, update, now, part), "")
    result = float(risk_gradient_norm(ppo.agent, data, part, 0.0, ppo.config))
    assert result == pytest.approx(alone, rel=1e-4)
    everything = length(gradients(ppo, update, update.now, update.advantage), "")
    assert everything != pytest.approx(result, rel=0.05)
    doubled = float(risk_gradient_norm(ppo.agent, data, 2.0 * part, 0.0, ppo.config))
    assert doubled == pytest.approx(2.0 * result, rel=1e-5)


@pytest.mark.spec("X21", "T-M5")
def test_the_reported_norm_is_that_of_its_share_in_the_normalised_advantage():
    ppo, update = updated(**{"ppo.advantage_scale": "rollout"})
    data = ppo._batch(
        update.rollout, update.predicted, update.advantage, update.target, update.risk.options
    )
    raw, weight = update.mixed.double(), update.rollout.weight.double()
    mean = (raw * weight).sum() / weight.sum()
    count = weight.sum() ** 2 / weight.square().sum()
    spread = ((weight * (raw - mean).square()).sum() / weight.sum() * count / (count - 1)).sqrt()
    part = (update.risk.risk * update.risk.factor / spread).float()
    expected = float(risk_gradient_norm(ppo.agent, data, part, 0.0, ppo.config))
    assert float(update.risk.gradient_norm) == pytest.approx(expected, rel=1e-3)


def test_the_reported_norm_is_that_of_its_share_under_the_slow_scale():
    """The second update is divided by the deviation of the first."""
    ppo, update = updated()
    assert ppo.config.ppo.advantage_scale == "slow"
    first = updated_once()
    _, spread = oracle.weighted(first.mixed.double().numpy(), first.rollout.weight.double().numpy())
    data = ppo._batch(
        update.rollout, update.predicted, update.advantage, update.target, update.risk.options
    )
    part = (update.risk.risk * update.risk.factor / spread).float()
    expected = float(risk_gradient_norm(ppo.agent, data, part, 0.0, ppo.config))
    assert float(update.risk.gradient_norm) == pytest.approx(expected, rel=1e-3)


def micro(ppo, size):
    return ppo.config.replace(**{"ppo.microbatch_size": size})


@pytest.mark.parametrize("legacy", [0.0, 0.7], ids=["risk advantage", "old term"])
@pytest.mark.parametrize("critic", DISTRIBUTIONS)
def test_micro_batches_give_the_norm_of_the_whole_and_hold_no_more_than_their_sequences(
    critic, legacy, monkeypatch
):
    """Eight sequences by 3, 3 and 2, of unequal weight: their gradients add up, not their norms."""
    ppo, update = updated(**CRITICS[critic])
    data = ppo._batch(
        update.rollout, update.predicted, update.advantage, update.target, update.risk.options
    )
    part, network, seen = update.risk.risk, ppo.agent.network, []
    whole = float(risk_gradient_norm(ppo.agent, data, part, legacy, ppo.config))
    inner = network.forward

    def watched(observation, *rest):
        seen.append(observation.shape[1])
        return inner(observation, *rest)

    monkeypatch.setattr(network, "forward", watched)
    result = {
        size: float(risk_gradient_norm(ppo.agent, data, part, legacy, micro(ppo, size)))
        for size in (8, 3, 1)
    }
    assert result == pytest.approx(dict.fromkeys((8, 3, 1), whole), rel=1e-5)
    assert seen == [8, 3, 3, 2, *[1] * 8]
    assert whole > 1e-3


def test_the_reported_norm_does_not_depend_on_how_minibatches_are_cut():
    result = [
        float(updated(**{"ppo.microbatch_size": size})[1].risk.gradient_norm) for size in (None, 3)
    ]
    assert result[1] == pytest.approx(result[0], rel=1e-3)


def test_the_norm_is_measured_only_where_it_is_asked_for_or_alpha_is_small():
    quiet = settings(**{**TAIL, "risk.cvar_log_gradient": False}).risk
    small = {"risk.cvar_alpha": 0.005, "risk.cvar_window": 4000}
    assert not quiet.logs_gradient
    assert settings(**TAIL).risk.logs_gradient
    assert settings(**{**TAIL, **small, "risk.cvar_log_gradient": False}).risk.logs_gradient
    _, update = updated(**{"risk.cvar_log_gradient": False})
    assert update.risk.gradient_norm is None


def test_measuring_it_changes_nothing():
    result = []
    for measured in (False, True):
        ppo, _ = updated(**{"risk.cvar_log_gradient": measured, "ppo.learning_rate": 1e-2})
        result.append(ppo.agent.state_dict())
    assert all(torch.equal(result[0][name], result[1][name]) for name in result[0])
