"""Values of all actions: targets by hand, a world that is solved exactly, and the taken action."""

import math
from functools import cache

import pytest
import torch

from bets_lab import bets_learner, bets_policy, limited
from learner_lab import learner, script, settings
from stormsail.algorithms.risk import action_critic
from stormsail.algorithms.risk.action_critic import ActionCritic, frame_of
from stormsail.algorithms.risk.rows import Rows
from stormsail.bench.bets.bets_worlds import KNOWN, World
from stormsail.modules.action_values import parts

GAMMA, LEVEL, SPREAD, HORIZON = 0.9, -1.0, 2.0, 4
COINS = World("coins", -0.5, 2, (0.0, 1.0), (((0.4, -1.0), (0.6, 0.5)),), alpha=0.2)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# --- targets -------------------------------------------------------------------------------------


class Known(torch.nn.Module):
    """Values that can be worked out by hand: they depend on return so far, time and account."""

    def __init__(self):
        super().__init__()
        self.register_buffer("unit", torch.ones(2, 1))

    def forward(self, x):
        left, so_far = x[..., -5], x[..., -4]
        return torch.stack(
            [torch.stack([self.value(r, k, left, so_far) for k in range(2)], -1) for r in range(2)],
            -2,
        )

    @staticmethod
    def value(reward, action, left, so_far):
        return (2.0 - 1.2 * reward) * (action - 0.7) + 0.7 * left + (0.4 - 0.3 * action) * so_far


REWARD = ((0.2, -2.0), (0.5, -0.25), (1.0, -0.5), (0.25, 0.75))
SO_FAR = (0.5, 1.0, -0.75, -1.2)
ELAPSED = (0.0, 3.0, 1.0, 2.0)
ENDS = ((False, False), (False, False), (False, True), (False, False))
LAST = (False, True, False, False)
ACCOUNT = ((0.3, -0.6), (1.0, 0.0), (0.5, 0.5), (-1.0, 2.0))
"""As the network sees it after either action."""


def handmade(ppo):
    count = len(REWARD)
    columns = ppo.agent.spec.columns
    seen = torch.full((count, 2, columns), 0.1)
    seen[:, 1, -1] = -9.0  # account of the taken action: not the one that is valued
    return Rows(
        seen=seen,
        memory=ppo.agent.initial_memory(count),
        reward=torch.tensor(REWARD),
        terminated=torch.tensor(ENDS),
        account=torch.tensor(ACCOUNT)[..., None],
        return_so_far=torch.tensor(SO_FAR),
        elapsed=torch.tensor(ELAPSED),
        last=torch.tensor(LAST),
        raw_action=torch.zeros(count, 1, dtype=torch.int64),
        log_prob=torch.zeros(count),
        weight=torch.ones(count),
    )


def by_account(ppo):
    """Let the account alone decide on the policy: log odds of the first action are 2 x account."""
    ppo.agent.network.actor = lambda _, account: torch.cat((account, -account), -1)


def expected_sarsa(row, action, reward):
    """Return the target of one step and action, by loops over the next action."""
    paid, so_far = REWARD[row][action], SO_FAR[row]
    after = so_far + paid
    own = paid if reward == 0 else min(after - LEVEL, 0.0) - min(so_far - LEVEL, 0.0)
    ends = ENDS[row][action] or (reward == 1 and LAST[row])
    if not ends:
        odds = math.exp(2.0 * ACCOUNT[row][action])
        policy = (odds / (1.0 + odds), 1.0 / (1.0 + odds))
        left = 1.0 - (ELAPSED[row] + 1.0) / HORIZON
        in_spreads = min(max(after / SPREAD, -3.0), 3.0)
        coming = sum(
            policy[b] * Known.value(reward, b, left, in_spreads) for b in range(len(policy))
        )
        own += (GAMMA if reward == 0 else 1.0) * coming
    return own


def ceiling(row):
    """Return the most that can be undone: whatever follows, a shortfall is never above 0."""
    return -min(SO_FAR[row] - LEVEL, 0.0)


def test_targets_are_the_expected_sarsa_ones_of_both_rewards_and_every_action():
    ppo = bets_learner(COINS, **limited(COINS), **{"ppo.gamma": GAMMA})
    critic = ppo.risk.critic
    critic.averaged = Known()
    by_account(ppo)
    frame = frame_of(LEVEL, SPREAD, HORIZON, torch.device("cpu"))
    wanted = critic._wanted(critic._targets(ppo.agent, handmade(ppo), frame))
    expected = [
        [
            [expected_sarsa(row, a, 0) for a in range(2)],
            [min(expected_sarsa(row, a, 1), ceiling(row)) for a in range(2)],
        ]
        for row in range(len(REWARD))
    ]
    torch.testing.assert_close(wanted, torch.tensor(expected), rtol=1e-6, atol=1e-6)
    above = [
        expected_sarsa(row, a, 1) > ceiling(row) + 0.1 for row in range(len(REWARD)) for a in (0, 1)
    ]
    assert any(above)  # the ceiling acts on some
    assert not all(above)
    assert expected[1][1] == [0.0, 0.0]  # at the horizon's end a shortfall is what it is


def test_values_of_the_following_state_are_those_of_the_account_that_the_action_makes():
    ppo = bets_learner(COINS, **limited(COINS))
    ppo.env_state, rollout = ppo._collect()
    critic = ppo.risk.critic
    critic.averaged = Known()
    by_account(ppo)
    frame = frame_of(LEVEL, SPREAD, HORIZON, torch.device("cpu"))
    following = critic.predict_following(ppo.agent, rollout, frame)
    account = ppo.agent.observation_scale(
        torch.nn.functional.pad(rollout.options.step.account, (1, 0))
    )[..., 1]
    t, b = 0, 3
    for action in range(2):
        after = float(rollout.options.step.reward[t, b, action])
        odds = math.exp(2.0 * float(account[t, b, action]))
        for reward in range(2):
            values = [Known.value(reward, k, 0.75, after / SPREAD) for k in range(2)]
            expected = (odds * values[0] + values[1]) / (1.0 + odds)
            assert float(following[t, b, reward, action]) == pytest.approx(expected, abs=1e-5)


# --- a world that is solved ----------------------------------------------------------------------


SHARES = (0.4, 0.6)
NU = -0.5
ROUNDS = 100


@cache
def solved(bar, total, action):
    """Return the mean reward and the shortfall that an action leads to, by all outcomes."""
    mean = short = 0.0
    for share, payoff in COINS.payoffs[0]:
        after = round(total + COINS.levels[action] * payoff, 6)
        gain, fall = after - total, min(after - NU, 0.0) - min(total - NU, 0.0)
        if bar + 1 < COINS.bars:
            for k, chance in enumerate(SHARES):
                following = solved(bar + 1, after, k)
                gain, fall = gain + chance * following[0], fall + chance * following[1]
        mean, short = mean + share * gain, short + share * fall
    return mean, short


def test_it_learns_the_values_of_a_fixed_policy_in_a_solved_world():
    ppo = bets_learner(COINS, **limited(COINS), **{"ppo.n_envs": 256})
    agent, critic = ppo.agent, ppo.risk.critic
    bets_policy(agent, COINS, SHARES)
    frame = frame_of(NU, 0.7, COINS.bars, torch.device("cpu"))
    source = generator(1)
    for done in range(ROUNDS):
        ppo.env_state, rollout = ppo._collect()
        critic.memory.add(agent, rollout, COINS.bars, source)
        critic.learn(agent, frame, source, rate=1.0 - 0.95 * done / ROUNDS)
    values = critic.predict(rollout, frame)
    worst = {0: 0.0, 1: 0.0}
    states = set()
    for t, b in rollout.weight.nonzero().tolist():
        bar, total = int(rollout.length[t, b]) - 1, round(float(rollout.return_so_far[t, b]), 6)
        states.add((bar, total))
        for action in range(2):
            for reward, exact in enumerate(solved(bar, total, action)):
                error = abs(float(values[t, b, reward, action]) - exact)
                worst[reward] = max(worst[reward], error)
    assert states == {(0, 0.0), (1, -1.0), (1, 0.0), (1, 0.5)}
    # a loss falls short by 0.5, a bet moves 1.5: errors of six seeds are 0.01 to 0.04
    assert worst[1] < 0.05
    assert worst[0] < 0.05


# --- what it is fitted by ------------------------------------------------------------------------


def three_actions():
    """Return a critic of two rewards and three actions, and what its optimizer steps on."""
    critic = bets_learner(KNOWN["stakes-8"], **limited(KNOWN["stakes-8"])).risk.critic
    width = critic.values.body.layers[0].in_features
    return critic, width, critic.values.shape[1]


def test_the_loss_counts_the_mean_over_actions_and_what_they_add_in_units_of_their_own():
    critic, width, actions = three_actions()
    critic.values.unit.copy_(torch.tensor([[2.0, 0.5], [4.0, 0.1]]))
    source = generator(3)
    own = torch.randn(6, width, generator=source)
    wanted = torch.randn(6, 2, actions, generator=source)
    weight = torch.rand(6, generator=source)
    error = (critic.values(own) - wanted).detach().double().numpy()
    expected = 0.0
    for row in range(6):
        for reward, (whole, added) in enumerate(((2.0, 0.5), (4.0, 0.1))):
            mean = sum(error[row, reward]) / actions
            apart = sum(((each - mean) / added) ** 2 for each in error[row, reward]) / actions
            expected += float(weight[row]) * ((mean / whole) ** 2 + apart) / 2 / 6
    assert float(critic._step(own, wanted, weight)) == pytest.approx(expected, rel=1e-5)


def test_values_are_asked_of_weights_that_follow_those_of_the_optimizer():
    critic, width, actions = three_actions()
    own, wanted = torch.ones(4, width), torch.ones(4, 2, actions)
    before = [each.clone() for each in critic.averaged.parameters()]
    critic._step(own, wanted, torch.ones(4))
    for old, now, stepped in zip(
        before, critic.averaged.parameters(), critic.values.parameters(), strict=True
    ):
        torch.testing.assert_close(now, 0.98 * old + 0.02 * stepped, rtol=1e-6, atol=1e-7)
        assert not now.requires_grad


def test_targets_and_predictions_are_those_of_the_averaged_weights():
    """The weights that the optimizer moves may be anything."""
    ppo = bets_learner(COINS, **limited(COINS))
    ppo.env_state, rollout = ppo._collect()
    critic, source = ppo.risk.critic, generator(0)
    critic.memory.add(ppo.agent, rollout, COINS.bars, source)
    frame = frame_of(NU, 0.7, COINS.bars, torch.device("cpu"))
    targets = critic._targets(ppo.agent, critic.memory.sample(64, source), frame)
    asked = (
        lambda: critic._wanted(targets),
        lambda: critic.predict(rollout, frame),
        lambda: critic.predict_following(ppo.agent, rollout, frame),
    )
    before = [ask() for ask in asked]
    with torch.no_grad():
        critic.values.last.bias.add_(100.0)
    assert all(torch.equal(ask(), old) for ask, old in zip(asked, before, strict=True))
    with torch.no_grad():
        critic.averaged.last.bias.add_(100.0)
    assert not any(torch.equal(ask(), old) for ask, old in zip(asked, before, strict=True))


def test_the_first_weights_are_in_the_unit_of_the_first_targets():
    """What they say before anything is learned is small beside whatever is to be learned."""
    ppo = bets_learner(KNOWN["bars"], **limited(KNOWN["bars"]))
    ppo.env_state, rollout = ppo._collect()
    critic, source = ppo.risk.critic, generator(0)
    critic.memory.add(ppo.agent, rollout, 64, source)
    frame = frame_of(-300.0, 100.0, 64, torch.device("cpu"))
    targets = critic._targets(ppo.agent, critic.memory.sample(1024, source), frame)
    before = critic.values(targets.own).detach()
    critic._set_unit(targets)
    after = critic.values(targets.own).detach()
    assert critic.values.unit[0, 1] > 1.0
    expected = parts(before)[1] * critic.values.unit[:, 1:]
    torch.testing.assert_close(parts(after)[1], expected, rtol=1e-5, atol=1e-4)
    assert torch.equal(critic.values.unit, critic.averaged.unit)


def test_a_rare_event_is_not_laid_to_what_happened_to_be_seen_with_it():
    """One row in twenty loses by the level; fifteen columns of noise say nothing about it."""
    critic, width, actions = three_actions()
    source = generator(5)
    own = torch.randn(8192, width, generator=source)
    event = (torch.arange(8192) % 20 == 0).float()
    level = torch.arange(float(actions))
    wanted = -(event[:, None, None] * level).expand(-1, 2, -1)
    size = parts(wanted)[1].square().mean().sqrt()
    for network in (critic.values, critic.averaged):
        network.unit.fill_(float(size))
    for _ in range(30):
        for chosen in torch.randperm(8192, generator=source).split(256):
            critic._step(own[chosen], wanted[chosen], torch.ones(len(chosen)))
    added = parts(critic.averaged(torch.randn(4096, width, generator=source)))[1][:, 1]  # [n, K]
    difference = added[:, 0] - added[:, -1]
    assert float(difference.mean()) == pytest.approx(float(level[-1]) / 20, rel=0.05)
    assert float(difference.std()) < 0.16  # 0.129; without decay 0.206


# --- only the taken action is known --------------------------------------------------------------


TAIL = {
    "risk.cvar_alpha": 0.3,
    "risk.cvar_min_samples": 4,
    "risk.cvar_min_tail_samples": 1,
    "risk.cvar_use_constraint": True,
    "risk.cvar_limit": 0.5,
}
OLD, NEW = (0.2, 0.3, 0.5), (0.6, 0.35, 0.05)


def one_action():
    """Return a learner whose memory holds steps of a policy that it no longer has."""
    ppo = learner(settings(**TAIL), told=script(weights=(1.0, 0.5), seed=4))
    bets_policy(ppo.agent, None, OLD)
    ppo.env_state, rollout = ppo._collect()
    ppo.risk.critic.memory.add(ppo.agent, rollout, None, generator())
    bets_policy(ppo.agent, None, NEW)
    return ppo, rollout


def test_a_step_of_an_earlier_policy_counts_by_a_bounded_ratio():
    ppo, _ = one_action()
    critic = ppo.risk.critic
    assert critic.values.shape == (2, 1)
    rows = critic.memory.sample(64, generator(2))
    frame = frame_of(0.5, 1.0, None, torch.device("cpu"))
    targets = critic._targets(ppo.agent, rows, frame)
    ratio = [min(new / old, action_critic.MOST_RATIO) for new, old in zip(NEW, OLD, strict=True)]
    expected = rows.weight * torch.tensor(ratio)[rows.raw_action[:, 0]]
    torch.testing.assert_close(targets.weight, expected, rtol=1e-5, atol=0.0)
    assert set(rows.raw_action[rows.weight > 0.0, 0].tolist()) == {0, 1, 2}
    assert max(new / old for new, old in zip(NEW, OLD, strict=True)) > action_critic.MOST_RATIO


def test_both_ends_stop_the_shortfall_and_only_a_termination_the_mean():
    ppo, rollout = one_action()
    rows = ppo.risk.critic.memory.sample(256, generator(2))
    frame = frame_of(0.5, 1.0, None, torch.device("cpu"))
    discount = ppo.risk.critic._targets(ppo.agent, rows, frame).discount[..., 0]
    kinds = {}
    for k in range(len(rows.weight)):
        if float(rows.weight[k]) > 0.0:
            flags = bool(rows.terminated[k, 0]), bool(rows.last[k])
            kinds.setdefault(flags, set()).add(tuple(discount[k].tolist()))
    gamma = float(torch.tensor(ppo.config.ppo.gamma))
    assert kinds == {
        (False, False): {(gamma, 1.0)},
        (True, False): {(0.0, 0.0)},
        (False, True): {(gamma, 0.0)},
    }
    assert bool(rollout.truncated.any())
    assert bool(rollout.terminated.any())


def test_the_advantage_of_the_taken_action_is_what_the_step_added_to_the_expected_shortfall():
    ppo = learner(settings(**TAIL), told=script(weights=(1.0, 0.5), seed=4))
    for _ in range(3):
        ppo.env_state, rollout = ppo._collect()
        ppo.risk.window.add(rollout)
    tail = ppo.risk.measure(rollout)
    risk, loss = ppo.risk._learned(tail, rollout, ppo.agent, 1.0)
    frame = frame_of(ppo.risk.level, tail.spread, None, torch.device("cpu"))
    value = ppo.risk.critic.predict(rollout, frame)[:, :, 1, 0]
    following = ppo.risk.critic.predict_following(ppo.agent, rollout, frame)[:, :, 1, 0]
    nu, alpha = ppo.risk.level, TAIL["risk.cvar_alpha"]
    for t, b in ((0, 0), (2, 4), (5, 4), (3, 5)):
        so_far, reward = float(rollout.return_so_far[t, b]), float(rollout.reward[t, b])
        expected = min(so_far + reward - nu, 0.0) - min(so_far - nu, 0.0) - float(value[t, b])
        if not bool(rollout.ended[t, b]):
            expected += float(following[t, b])
        if float(rollout.weight[t, b]) == 0.0:
            expected = 0.0
        assert float(risk[t, b]) == pytest.approx(expected / alpha, abs=1e-5)
    assert math.isfinite(loss)
    # the state after a step is the state before the next one, where an episode goes on
    goes_on = ~rollout.ended[:-1]
    torch.testing.assert_close(following[:-1][goes_on], value[1:][goes_on], rtol=1e-4, atol=1e-5)


# --- what is kept --------------------------------------------------------------------------------


def test_the_first_weights_are_those_of_their_generator():
    ppo = bets_learner(COINS, **limited(COINS))
    made = [
        ActionCritic(ppo.agent, actions=2, gamma=1.0, rollouts=3, generator=generator(seed))
        for seed in (4, 4, 5)
    ]
    weights = [critic.values.body.layers[0].weight for critic in made]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
