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
from stormsail.bench.bets.bets_unseen import UNSEEN
from stormsail.bench.bets.bets_worlds import KNOWN, World

GAMMA, LEVEL, SPREAD, HORIZON = 0.9, -1.0, 2.0, 4
COINS = World("coins", -0.5, 2, (0.0, 1.0), (((0.4, -1.0), (0.6, 0.5)),), alpha=0.2)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# --- targets -------------------------------------------------------------------------------------


class Known(torch.nn.Module):
    """Values that can be worked out by hand: they depend on return so far, time and account."""

    def __init__(self):
        super().__init__()
        self.register_buffer("unit", torch.ones(3))

    def value(self, x, reward):
        return self.of(reward, x[..., -5], x[..., -4], x[..., -6])

    def values(self, x):
        return torch.stack([self.value(x, reward) for reward in range(2)], -1)

    @staticmethod
    def of(reward, left, so_far, account):
        return (0.9 - 1.2 * reward) * account + 0.7 * left + (0.4 - 0.3 * reward) * so_far


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


def target(row, action, reward):
    """Return what one action of one step is worth, by the values of the state it leads to."""
    paid, so_far = REWARD[row][action], SO_FAR[row]
    after = so_far + paid
    own = paid if reward == 0 else min(after - LEVEL, 0.0) - min(so_far - LEVEL, 0.0)
    ends = ENDS[row][action] or (reward == 1 and LAST[row])
    if not ends:
        left = 1.0 - (ELAPSED[row] + 1.0) / HORIZON
        in_spreads = min(max(after / SPREAD, -3.0), 3.0)
        coming = Known.of(reward, left, in_spreads, ACCOUNT[row][action])
        own += (GAMMA if reward == 0 else 1.0) * coming
    return own


def ceiling(row):
    """Return the most that can be undone: whatever follows, a shortfall is never above 0."""
    return -min(SO_FAR[row] - LEVEL, 0.0)


def test_targets_are_those_of_both_rewards_and_every_action():
    ppo = bets_learner(COINS, **limited(COINS), **{"ppo.gamma": GAMMA})
    critic = ppo.risk.critic
    critic.averaged = Known()
    frame = frame_of(LEVEL, SPREAD, HORIZON, torch.device("cpu"))
    wanted = critic._wanted(critic._targets(ppo.agent, handmade(ppo), frame))
    expected = [
        [[target(row, a, 0), min(target(row, a, 1), ceiling(row))] for a in range(2)]
        for row in range(len(REWARD))
    ]
    torch.testing.assert_close(wanted, torch.tensor(expected), rtol=1e-6, atol=1e-6)
    above = [target(row, a, 1) > ceiling(row) + 0.1 for row in range(len(REWARD)) for a in (0, 1)]
    assert any(above)  # the ceiling acts on some
    assert not all(above)
    assert [expected[1][a][1] for a in (0, 1)] == [0.0, 0.0]  # the horizon's end is an end


def test_the_policy_of_now_weighs_the_actions_of_a_remembered_state():
    ppo = bets_learner(COINS, **limited(COINS))
    rows = handmade(ppo)
    rows.seen[:, 0, -1] = torch.tensor([0.3, -0.6, 1.0, 0.0])
    ppo.agent.network.actor = lambda _, account: torch.cat((account, -account), -1)
    frame = frame_of(LEVEL, SPREAD, HORIZON, torch.device("cpu"))
    probability = ppo.risk.critic._targets(ppo.agent, rows, frame).probability
    odds = [math.exp(2.0 * account) for account in (0.3, -0.6, 1.0, 0.0)]
    expected = [[each / (1.0 + each), 1.0 / (1.0 + each)] for each in odds]
    torch.testing.assert_close(probability, torch.tensor(expected), rtol=1e-6, atol=1e-6)


def test_values_of_the_following_state_are_those_of_the_account_that_the_action_makes():
    ppo = bets_learner(COINS, **limited(COINS))
    ppo.env_state, rollout = ppo._collect()
    critic = ppo.risk.critic
    critic.averaged = Known()
    frame = frame_of(LEVEL, SPREAD, HORIZON, torch.device("cpu"))
    account = ppo.agent.observation_scale(
        torch.nn.functional.pad(rollout.options.step.account, (1, 0))
    )[..., 1]
    t, b = 0, 3
    for reward in range(2):
        following = critic.predict_following(ppo.agent, rollout, frame, reward)
        for action in range(2):
            after = float(rollout.options.step.reward[t, b, action]) / SPREAD
            expected = Known.of(reward, 0.75, after, float(account[t, b, action]))
            assert float(following[t, b, action]) == pytest.approx(expected, abs=1e-5)


# --- what followed -------------------------------------------------------------------------------


def followed(ppo, rollout, frame, seed=0):
    return ppo.risk.critic._followed(rollout, frame, generator(seed))


def test_a_followed_state_is_worth_what_the_episode_made_from_any_return_so_far():
    """By loops over the rows that follow; three rows of episodes of four steps, so all go on."""
    world = KNOWN["stakes-8"]
    ppo = bets_learner(world, **limited(world), **{"ppo.n_steps": 3, "ppo.gamma": GAMMA})
    rollouts = []
    for _ in range(3):
        ppo.env_state, rollout = ppo._collect()
        rollouts.append(rollout)
    critic = ppo.risk.critic
    critic.averaged = Known()
    frame = frame_of(-3.0, SPREAD, world.bars, torch.device("cpu"))
    checked = {True: 0, False: 0}
    for rollout in rollouts:
        states = followed(ppo, rollout, frame)
        shift = torch.randn(rollout.reward.shape, generator=generator())
        rows, batch = rollout.reward.shape
        for t in range(rows):
            for b in range(batch):
                if float(rollout.weight[t, b]) == 0.0:
                    continue
                before = float(rollout.return_so_far[t, b]) + 0.5 * SPREAD * float(shift[t, b])
                total, ends = before, False
                for k in range(t, rows):
                    total += float(rollout.reward[k, b])
                    ends = bool(rollout.ended[k, b])
                    if ends:
                        break
                value = min(total + 3.0, 0.0) - min(before + 3.0, 0.0)
                if not ends:
                    left = 1.0 - int(rollout.length[-1, b]) / world.bars
                    account = float(rollout.options.seen[-1, b, -1])
                    in_spreads = min(max(total / SPREAD, -3.0), 3.0)
                    value += Known.of(1, left, in_spreads, account)
                value = min(value, -min(before + 3.0, 0.0))
                place = t * batch + b
                assert float(states.wanted[place, 1]) == pytest.approx(value, abs=1e-5)
                in_spreads = min(max(before / SPREAD, -3.0), 3.0)
                assert float(states.own[place, -4]) == pytest.approx(in_spreads, abs=1e-5)
                assert float(states.weight[place]) == float(rollout.weight[t, b])
                checked[ends] += 1
    assert min(checked.values()) > 20


def test_what_a_followed_state_earns_is_its_lambda_return():
    """By a loop backwards: r + gamma ((1 - lambda) V + lambda G), with two kinds of ends."""
    world = UNSEEN["compound"]
    ppo = bets_learner(world, **limited(world), **{"ppo.n_steps": 5, "ppo.gamma": GAMMA})
    critic = ppo.risk.critic
    critic.averaged = Known()
    frame = frame_of(-3.0, SPREAD, world.bars, torch.device("cpu"))
    for _ in range(4):
        ppo.env_state, rollout = ppo._collect()
    wanted = followed(ppo, rollout, frame).wanted[:, 0].reshape(rollout.reward.shape)
    for b in range(rollout.reward.shape[1]):
        result = None
        for t in reversed(range(len(rollout.reward))):
            after = float(rollout.return_so_far[t, b]) + float(rollout.reward[t, b])
            left = 1.0 - int(rollout.length[t, b]) / world.bars
            account = float(rollout.options.seen[t + 1, b, -1])
            value = Known.of(0, left, min(max(after / SPREAD, -3.0), 3.0), account)
            if result is not None and not bool(rollout.ended[t, b]):
                value = 0.03 * value + 0.97 * result
            terminated = bool(rollout.terminated[t, b])
            result = float(rollout.reward[t, b]) + (0.0 if terminated else GAMMA * value)
            if float(rollout.weight[t, b]) > 0.0:
                assert float(wanted[t, b]) == pytest.approx(result, abs=1e-4)


def test_the_value_of_a_shortfall_does_not_see_the_account():
    world = KNOWN["stakes-8"]
    ppo = bets_learner(world, **limited(world))
    critic, names = ppo.risk.critic, ppo.agent.spec.observation_names
    width = ppo.agent.network.trunk.memory.width
    hidden = [width + names.index(name) for name in ppo.agent.spec.after_memory]
    assert hidden
    columns = range(critic.values.shown.shape[1])
    assert critic.values.shown[0].tolist() == [1.0 for _ in columns]
    assert critic.values.shown[1].tolist() == [float(k not in hidden) for k in columns]


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


@pytest.mark.parametrize("follows", [False, True])
def test_it_learns_the_values_of_a_fixed_policy_in_a_solved_world(follows):
    ppo = bets_learner(COINS, **limited(COINS), **{"ppo.n_envs": 256})
    agent, critic = ppo.agent, ppo.risk.critic
    bets_policy(agent, COINS, SHARES)
    frame = frame_of(NU, 0.7, COINS.bars, torch.device("cpu"))
    source = generator(1)
    for done in range(ROUNDS):
        ppo.env_state, rollout = ppo._collect()
        critic.memory.add(agent, rollout, COINS.bars, source)
        rate = 1.0 - 0.95 * done / ROUNDS
        critic.learn(agent, frame, source, rollout=rollout if follows else None, rate=rate)
    value, added = critic.predict(rollout, frame)
    following = critic.predict_following(agent, rollout, frame, 0)
    worst = {"value": 0.0, "added": 0.0, "mean": 0.0}
    states = set()
    for t, b in rollout.weight.nonzero().tolist():
        bar, total = int(rollout.length[t, b]) - 1, round(float(rollout.return_so_far[t, b]), 6)
        states.add((bar, total))
        short = [solved(bar, total, action)[1] for action in range(2)]
        expected = SHARES[0] * short[0] + SHARES[1] * short[1]
        worst["value"] = max(worst["value"], abs(float(value[t, b]) - expected))
        half = (short[1] - short[0]) / 2
        worst["added"] = max(worst["added"], abs(float(added[t, b, 1]) - half))
        if bar == 0:  # after the last bar nothing is earned
            after = [round(float(x), 6) for x in rollout.options.step.reward[t, b]]
            for action in range(2):
                coming = sum(
                    chance * solved(1, after[action], k)[0] for k, chance in enumerate(SHARES)
                )
                error = abs(float(following[t, b, action]) - coming)
                worst["mean"] = max(worst["mean"], error)
    assert states == {(0, 0.0), (1, -1.0), (1, 0.0), (1, 0.5)}
    # a loss falls short by 0.5, a bet moves 1.5
    assert max(worst.values()) < 0.05, worst


# --- what it is fitted by ------------------------------------------------------------------------


def stakes():
    """Return a critic of two rewards, the number of its inputs, and of its actions."""
    critic = bets_learner(KNOWN["stakes-8"], **limited(KNOWN["stakes-8"])).risk.critic
    return critic, critic.values.shown.shape[1], critic.values.actions


def targets_of(own, actions, weight=None):
    """Return targets of which the loss looks at inputs, probabilities and weights alone."""
    count = len(own)
    nothing = torch.zeros(count, actions, 2)
    return action_critic.Targets(
        own=own,
        following=own[:, None].expand(-1, actions, -1),
        probability=torch.rand(count, actions, generator=generator(9)).softmax(-1),
        reward=nothing,
        discount=nothing,
        ceiling=nothing[:, :1],
        weight=torch.ones(count) if weight is None else weight,
    )


def test_the_loss_counts_values_and_what_actions_add_in_units_of_their_own():
    critic, width, actions = stakes()
    unit = (2.0, 4.0, 0.1)
    critic.values.unit.copy_(torch.tensor(unit))
    source = generator(3)
    own = torch.randn(6, width, generator=source)
    wanted = torch.randn(6, actions, 2, generator=source)
    targets = targets_of(own, actions, torch.rand(6, generator=source))
    states = action_critic.Followed(
        own=torch.randn(5, width, generator=source),
        wanted=torch.randn(5, 2, generator=source),
        weight=torch.rand(5, generator=source),
    )
    value, added = (x.detach().double().numpy() for x in critic.values(own))
    later = critic.values.values(states.own).detach().double().numpy()
    expected = 0.0
    for row in range(6):
        error = 0.0
        for reward in range(2):
            mean = sum(
                float(targets.probability[row, a] * wanted[row, a, reward]) for a in range(actions)
            )
            error += ((value[row, reward] - mean) / unit[reward]) ** 2
        middle = float(wanted[row, :, 1].mean())
        for a in range(actions):
            apart = added[row, a] - (float(wanted[row, a, 1]) - middle)
            error += (apart / unit[2]) ** 2 / actions
        expected += float(targets.weight[row]) * error / 6
    for row in range(5):
        for reward in range(2):
            error = (later[row, reward] - float(states.wanted[row, reward])) / unit[reward]
            expected += float(states.weight[row]) * error**2 / 5
    lesson = action_critic._lesson(targets, wanted)
    assert float(critic._step(lesson, states)) == pytest.approx(expected, rel=1e-5)


def test_values_are_asked_of_weights_that_follow_those_of_the_optimizer():
    critic, width, actions = stakes()
    before = [each.clone() for each in critic.averaged.parameters()]
    targets = targets_of(torch.ones(4, width), actions)
    critic._step(action_critic._lesson(targets, torch.ones(4, actions, 2)), None)
    for old, now, stepped in zip(
        before, critic.averaged.parameters(), critic.values.parameters(), strict=True
    ):
        torch.testing.assert_close(now, 0.98 * old + 0.02 * stepped, rtol=1e-6, atol=1e-7)
        assert not now.requires_grad


def test_targets_and_predictions_are_those_of_the_averaged_weights():
    """The weights that the optimizer moves may be anything."""
    ppo = bets_learner(COINS, **limited(COINS), **{"ppo.n_steps": 2})  # no episode ends in it
    ppo.env_state, rollout = ppo._collect()
    critic, source = ppo.risk.critic, generator(0)
    critic.memory.add(ppo.agent, rollout, 4, source)
    frame = frame_of(NU, 0.7, 4, torch.device("cpu"))
    targets = critic._targets(ppo.agent, critic.memory.sample(64, source), frame)
    asked = (
        lambda: critic._wanted(targets),
        lambda: critic.predict(rollout, frame)[0],
        lambda: critic.predict_following(ppo.agent, rollout, frame, 0),
        lambda: followed(ppo, rollout, frame).wanted,
    )
    before = [ask() for ask in asked]

    def move(network):
        with torch.no_grad():
            for layers in network.states:
                layers[-1].bias.add_(100.0)

    move(critic.values)
    assert all(torch.equal(ask(), old) for ask, old in zip(asked, before, strict=True))
    move(critic.averaged)
    assert not any(torch.equal(ask(), old) for ask, old in zip(asked, before, strict=True))


def test_the_first_weights_are_in_the_unit_of_the_first_targets():
    """What they say before anything is learned is small beside whatever is to be learned."""
    ppo = bets_learner(KNOWN["bars"], **limited(KNOWN["bars"]))
    ppo.env_state, rollout = ppo._collect()
    critic, source = ppo.risk.critic, generator(0)
    critic.memory.add(ppo.agent, rollout, 64, source)
    frame = frame_of(-300.0, 100.0, 64, torch.device("cpu"))
    targets = critic._targets(ppo.agent, critic.memory.sample(1024, source), frame)
    before = critic.values.values(targets.own).detach()
    critic._set_unit(targets)
    after = critic.values.values(targets.own).detach()
    assert critic.values.unit[0] > 1.0
    torch.testing.assert_close(after, before * critic.values.unit[:-1], rtol=1e-5, atol=1e-4)
    assert torch.equal(critic.values.unit, critic.averaged.unit)


def test_a_rare_event_is_not_laid_to_what_happened_to_be_seen_with_it():
    """One row in twenty loses by the level; fifteen columns of noise say nothing about it."""
    critic, width, actions = stakes()
    source = generator(5)
    own = torch.randn(8192, width, generator=source)
    event = (torch.arange(8192) % 20 == 0).float()
    level = torch.arange(float(actions))
    wanted = -(event[:, None, None] * level[:, None]).expand(-1, -1, 2)
    size = (wanted - wanted.mean(1, keepdim=True)).square().mean().sqrt()
    for network in (critic.values, critic.averaged):
        network.unit.fill_(float(size))
    for _ in range(30):
        for chosen in torch.randperm(8192, generator=source).split(256):
            targets = targets_of(own[chosen], actions)
            critic._step(action_critic._lesson(targets, wanted[chosen]), None)
    added = critic.averaged.added(torch.randn(4096, width, generator=source))  # [n, K]
    difference = added[:, 0] - added[:, -1]
    assert float(difference.mean()) == pytest.approx(float(level[-1]) / 20, rel=0.05)
    assert float(difference.std()) < 0.16  # 0.127; more without decay


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
    assert critic.values.actions == 1
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
    discount = ppo.risk.critic._targets(ppo.agent, rows, frame).discount[:, 0]
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
    value, _ = ppo.risk.critic.predict(rollout, frame)
    following = ppo.risk.critic.predict_following(ppo.agent, rollout, frame, 1)[..., 0]
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
    weights = [critic.values.advantages[0].layers[0].weight for critic in made]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
