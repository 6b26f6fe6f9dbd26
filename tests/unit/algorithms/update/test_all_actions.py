"""The policy term in expectation over all actions: its gradient, and what it replaces."""

import dataclasses

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bets_lab import bets_learner, limited
from stormsail.algorithms.update.estimates import estimate
from stormsail.algorithms.update.losses import batch_sums
from stormsail.bench.bets.bets_worlds import KNOWN

WORLD, BANDIT = KNOWN["stakes-8"], KNOWN["one-bet-10"]
POLICY_ONLY = {"vf_coef": 0.0, "ent_coef": 0.0, "kl_beta": 0.0, "bc_coef": 0.0}
STILL = {
    "ppo.learning_rate": 1e-9,
    "ppo.learning_rate_final": 1e-9,
    "ppo.optimizer_lr_min": 0.0,
    "optimizer.optimizer_class": "AdamW",
    "observation.obs_stats_update": "between_rollouts",
}


def prepared(world=WORLD, **changes):
    """Return a learner, a whole rollout as a batch with advantages of all actions, and its now."""
    ppo = bets_learner(world, **limited(world), **{**STILL, **changes})
    with torch.no_grad():  # another policy in every state
        ppo.agent.network.actor_last.weight.mul_(100.0)
    update = ppo.update()
    data = ppo._batch(
        update.rollout, update.predicted, update.advantage, update.target, update.risk.options
    )
    source = torch.Generator().manual_seed(5)
    options = torch.randn(data.options.shape, generator=source)
    now = update.now._replace(**POLICY_ONLY, trains_policy=True)
    return ppo, dataclasses.replace(data, options=options), now


def gradients(ppo, loss):
    ppo.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    named = ppo.agent.network.named_parameters()
    return {
        name: p.grad.clone()
        for name, p in named
        if p.grad is not None and name.startswith(("actor", "trunk"))
    }


def sums(ppo, data, now):
    return batch_sums(ppo.agent, data, now, ppo.config, torch.Generator().manual_seed(0))


def same(one, other, tolerance):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=tolerance, atol=tolerance)
    assert max(float(x.abs().max()) for x in one.values()) > 100 * tolerance


def test_at_ratio_1_its_gradient_is_that_of_the_expected_advantage():
    ppo, data, now = prepared()
    actual = gradients(ppo, sums(ppo, data, now).loss)
    output = ppo.agent.network(data.observation, data.memory, data.reset)
    gained = (output.actor.softmax(-1) * data.options).sum(-1)
    expected = gradients(ppo, -(gained * data.weight).sum())
    same(actual, expected, 1e-4)


def test_the_surrogate_of_the_drawn_action_is_not_added():
    ppo, data, now = prepared()
    actual = sums(ppo, data, now)
    other = dataclasses.replace(data, advantage=data.advantage * -7.0 + 3.0)
    changed = sums(ppo, other, now)
    assert torch.equal(actual.policy, changed.policy)
    mine, theirs = gradients(ppo, actual.loss), gradients(ppo, changed.loss)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    without = dataclasses.replace(data, options=data.options[..., :0])
    assert not torch.equal(sums(ppo, without, now).policy, actual.policy)


def test_in_a_bandit_it_is_the_mean_of_the_sampled_form_over_the_drawn_action():
    ppo, data, now = prepared(BANDIT)
    actual = gradients(ppo, sums(ppo, data, now).loss)
    with torch.no_grad():
        output = ppo.agent.network(data.observation, data.memory, data.reset)
        log_prob = output.actor.log_softmax(-1)
    mean = dict.fromkeys(actual, 0.0)
    for action in range(2):
        drawn = dataclasses.replace(
            data,
            raw_action=torch.full_like(data.raw_action, action),
            log_prob=log_prob[..., action],
            advantage=data.options[..., action],
            options=data.options[..., :0],
            weight=data.weight * log_prob[..., action].exp(),
        )
        for name, part in gradients(ppo, sums(ppo, drawn, now).loss).items():
            mean[name] = mean[name] + part
    same(actual, mean, 1e-4)


def test_ratios_beyond_the_clip_have_no_gradient_action_by_action():
    ppo, data, now = prepared(BANDIT)
    away = data.parameters - torch.tensor([3.0, 0.0])  # the first action was far less likely
    data = dataclasses.replace(data, parameters=away, options=torch.ones_like(data.options))
    data.options[..., 1] = 0.0
    assert all(
        float(g.abs().max()) == 0.0 for g in gradients(ppo, sums(ppo, data, now).loss).values()
    )
    data = dataclasses.replace(data, options=-data.options)  # back towards it has one
    assert (
        max(float(g.abs().max()) for g in gradients(ppo, sums(ppo, data, now).loss).values()) > 0.01
    )


def test_an_update_learns_from_the_mixture_that_the_control_made():
    ppo = bets_learner(WORLD, **limited(WORLD), **STILL)
    given, learn = [], ppo._learn
    ppo._learn = lambda data, *rest: (given.append(data), learn(data, *rest))[1]
    update = ppo.update()
    data = given[0]
    length = ppo.config.ppo.sequence_length
    rows, batch = update.rollout.reward.shape
    for sequence in range(data.options.shape[1]):
        t, b = sequence // batch * length, sequence % batch
        assert torch.equal(data.options[:, sequence], update.risk.options[t : t + length, b])
    assert data.options.shape[:2] == (length, rows // length * batch)
    plain = bets_learner(WORLD, **STILL)
    update = plain.update()
    data = plain._batch(update.rollout, update.predicted, update.advantage, update.target, None)
    assert data.options.shape[-1] == 0


class Reads(TorchDispatchMode):
    """Count what a device would have to be waited for."""

    WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal")

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        flags = name == "index" and any(x is not None and x.dtype == torch.bool for x in args[1])
        self.count += name in self.WAITS or flags
        return function(*args, **(kwargs or {}))


def reads(ppo):
    """Return how often the device is waited for in a rollout, and in the control after it."""
    for _ in range(3):
        ppo.update()
    with Reads() as rollout_reads:
        ppo.env_state, rollout = ppo._collect()
    estimates = estimate(ppo.agent, rollout, ppo.config)
    with Reads() as control_reads:
        ppo.risk.act(rollout, estimates, 0.0, ppo.agent)
    return rollout_reads.count, control_reads.count


@pytest.mark.parametrize("steps", [5, 20])
def test_the_host_waits_a_few_times_an_update_and_never_for_a_row(steps):
    changes = {"ppo.n_steps": steps, "ppo.total_steps": 10**5, "ppo.batch_size": 4}
    few = reads(bets_learner(WORLD, **limited(WORLD), **changes, **{"ppo.n_envs": 16}))
    many = reads(bets_learner(WORLD, **limited(WORLD), **changes, **{"ppo.n_envs": 64}))
    assert few == many
    assert few[0] == 0
    assert few[1] <= 40
