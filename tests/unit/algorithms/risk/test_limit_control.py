"""The control of all actions: level, share, aim, the rule for limits out of reach, what waits."""

import dataclasses
import math

import pytest
import torch

from bets_lab import COST, bets_learner, bets_policy, limited
from learner_lab import learner, settings
from stormsail.algorithms.ppo import Ppo
from stormsail.algorithms.risk import limit
from stormsail.algorithms.risk.build import build_control
from stormsail.algorithms.risk.control import RiskControl
from stormsail.algorithms.risk.draws import Draws
from stormsail.algorithms.risk.limit import LimitControl
from stormsail.algorithms.risk.report import NOTHING, SOURCES, Tail
from stormsail.algorithms.run.tasks import agent_spec
from stormsail.algorithms.update.estimates import estimate
from stormsail.bench.bets.bets_worlds import KNOWN, Bets
from stormsail.core.errors import ConfigError
from stormsail.modules.actions import grid_log_prob
from stormsail.modules.agent import Agent

WORLD, ONE_BET = KNOWN["stakes-8"], KNOWN["one-bet-10"]
HELD = limited(WORLD)
PARTS = {"risk.cvar_trust": "verified", "risk.cvar_floor": True}
"""Trust, which is a default, and the floor, which is not."""
BROKEN = {**HELD, "risk.cvar_limit": 3.0, "ppo.n_envs": 32}
"""By the first policy, whatever it draws: two in three episodes win more."""


def tail(cvar, *, error=0.5, level=-2.0, spread=10.0, ready=True):
    return Tail(
        samples=100, is_ready=ready, raw=cvar, empirical=cvar, error=error, level=level,
        spread=spread,
    )  # fmt: skip


def control(updates=1, **changes):
    """Return the control of a learner that has made some updates."""
    ppo = bets_learner(WORLD, **{**HELD, **changes})
    for _ in range(updates):
        ppo.update()
    return ppo.risk


# --- which control -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, None),
        (HELD, LimitControl),
        ({"ppo.policy_gradient": "all_actions"}, LimitControl),
        ({**HELD, "risk.form": "budget"}, RiskControl),
        ({**HELD, "risk.cvar_use_constraint": False}, RiskControl),
        (
            {**HELD, "risk.cvar_use_constraint": False, "ppo.policy_gradient": "all_actions"},
            LimitControl,
        ),
    ],
)
def test_settings_and_task_decide_on_the_control(changes, kind):
    made = bets_learner(WORLD, **changes).risk
    assert type(made) is (type(None) if kind is None else kind)


def test_a_task_that_says_nothing_of_other_actions_has_a_critic_of_the_taken_one():
    tail_settings = {name: HELD[name] for name in HELD}
    with_critic = learner(settings(**tail_settings)).risk
    assert type(with_critic) is RiskControl
    assert with_critic.critic.values.actions == 1
    assert with_critic.grid.shape == (0,)
    plain = learner(settings(**{**tail_settings, "risk.form": "budget"})).risk
    assert plain.critic is None
    assert plain.grid is None


class Unlisted(Bets):
    """A task with `alternatives` that names no column of an account."""

    def __init__(self, world, *, batch):
        super().__init__(world, batch=batch)
        self.account_names = ()


def test_where_actions_cannot_be_listed_the_taken_one_is_recorded():
    made = bets_learner(ONE_BET, **limited(ONE_BET))
    task = Unlisted(ONE_BET, batch=made.task.batch)
    agent = Agent(agent_spec(made.config, task), made.generators.stream("weights"))
    ppo = Ppo(task, agent, made.config, made.generators)
    assert type(ppo.risk) is RiskControl
    assert agent.spec.after_memory == ()
    ppo.env_state, rollout = ppo._collect()
    assert torch.equal(rollout.options.step.reward[..., 0], rollout.reward)
    assert rollout.options.step.reward.shape == (2, 16, 1)
    assert rollout.options.state is None
    assert set(rollout.raw_action[0].tolist()) == {0, 1}
    ppo.update()


@pytest.mark.refusal
def test_all_actions_are_refused_where_nobody_says_what_they_would_make():
    config = settings(**{"ppo.policy_gradient": "all_actions"})
    with pytest.raises(ConfigError) as caught:
        learner(config)
    assert str(caught.value) == (
        "`ppo.policy_gradient` can be `all_actions` only on a task that says what every action "
        "would have made of a step, with one dimension of actions; found `market`. Set "
        "`ppo.policy_gradient` to `sampled`. [config-inconsistent]"
    )


@pytest.mark.refusal
def test_all_actions_are_refused_beside_a_limit_of_the_other_form():
    changes = {**HELD, "risk.form": "budget", "ppo.policy_gradient": "all_actions"}
    with pytest.raises(ConfigError, match="must be `sampled` while settings of `risk` act in the"):
        settings(**changes)


@pytest.mark.refusal
def test_settings_of_a_multiplier_are_refused_where_there_is_none():
    changes = {**HELD, "risk.cvar_kp": 0.7, "risk.cvar_ema_beta": 0.2, "risk.cvar_window": 300}
    with pytest.raises(ConfigError) as caught:
        bets_learner(WORLD, **changes)
    assert str(caught.value) == (
        "settings of the multiplier must be left out on a task whose limit is kept by the values "
        "of all actions; found `risk.cvar_kp`, `risk.cvar_ema_beta`. Leave them out, or set "
        '`risk.form` to "budget". [config-inconsistent]'
    )
    assert type(learner(settings(**changes)).risk) is RiskControl  # sampled: it has a multiplier
    assert bets_learner(WORLD, **{**changes, "risk.form": "budget"}).risk is not None


class Masked(Bets):
    """A task that also says which actions are allowed."""

    def action_mask(self, _state):
        return torch.ones(self.batch, self.actions.count, dtype=torch.bool)


def test_where_not_every_action_is_allowed_the_taken_one_is_recorded():
    made = bets_learner(ONE_BET, **limited(ONE_BET))
    assert type(made.risk) is LimitControl
    masked = Masked(ONE_BET, batch=made.task.batch)
    assert type(build_control(masked, made.agent, made.config, made.generators)) is RiskControl


def test_a_limit_that_is_only_watched_moves_nothing():
    watched = {**BROKEN, "risk.cvar_use_constraint": False}
    ppo = bets_learner(WORLD, **{**watched, "ppo.policy_gradient": "all_actions"})
    for _ in range(4):
        report = ppo.update().risk
    assert report.tail.is_ready
    assert report.gap > 0.0
    assert report.multiplier == 0.0
    acting = bets_learner(WORLD, **BROKEN)
    for _ in range(4):
        acting.update()
    assert acting.risk.share > 0.0


def test_without_a_limit_returns_so_far_are_in_units_of_their_spread():
    ppo = bets_learner(WORLD, **{"ppo.policy_gradient": "all_actions", "ppo.n_envs": 64})
    for _ in range(6):
        report = ppo.update().risk
    returns = ppo.risk.draws.kept.result
    expected = math.sqrt(float(((returns - returns.mean()) ** 2).mean()))
    assert report.tail.spread == pytest.approx(expected, rel=1e-12)
    assert ppo.risk.draws.capacity == 512
    assert len(ppo.risk.draws) == 0  # nothing is scored


def test_the_account_is_behind_the_memory_where_all_actions_are_valued():
    for changes, names in (({}, ()), (HELD, ("earned", "level")), (
        {"ppo.policy_gradient": "all_actions"}, ("earned", "level")),
        ({**HELD, "risk.form": "budget"}, ()),
    ):  # fmt: skip
        ppo = bets_learner(COST, **changes)
        assert ppo.agent.spec.after_memory == names
        assert agent_spec(ppo.config, ppo.task).after_memory == names


# --- level and aim -------------------------------------------------------------------------------


def test_the_level_starts_at_its_goal_and_follows_it_slowly():
    made = control(0)
    made._move_level(tail(-4.0, level=-2.0))  # the limit of -8 holds: the value at risk itself
    assert made.level == -2.0
    made.updates = 1
    made._move_level(tail(-4.0, level=1.0))
    assert made.level == pytest.approx(-2.0 + limit.LEVEL_STEP * 3.0)
    made._move_level(tail(-12.0, level=1.0))  # broken by half of its size: half of the way to it
    before = -2.0 + limit.LEVEL_STEP * 3.0
    assert made.level == pytest.approx(before + limit.LEVEL_STEP * (-3.5 - before))


def test_the_level_is_never_below_the_limit_and_0_before_there_is_an_outcome():
    made = control(0)
    made._move_level(NOTHING)
    assert made.level == 0.0
    made = control(0)
    made._move_level(tail(-8.0, level=-20.0))
    assert made.level == WORLD.limit


def test_the_aim_lies_inside_the_limit_by_what_the_estimate_may_be_off():
    made = control(0)
    assert made.aim(tail(-9.0, error=0.4)) == pytest.approx(-8.0 + 0.4)
    assert made.aim(tail(-9.0, error=99.0)) == pytest.approx(-8.0 + 0.15 * 8.0)
    assert made.unit(tail(-9.0, spread=10.0)) == 8.0
    assert made.unit(tail(-9.0, spread=400.0)) == WORLD.alpha * 400.0


def test_the_limit_itself_is_not_moved_by_the_aim():
    """An estimate between limit and aim breaks nothing: the gap is that of the limit."""
    rarer = KNOWN["one-bet-4"]  # a loss likelier than alpha is the whole tail, without an error
    ppo = bets_learner(rarer, **limited(rarer), **{"ppo.n_envs": 64})
    for _ in range(4):
        report = ppo.update().risk
    assert report.tail.error > 0.01
    assert report.gap == rarer.limit - report.tail.empirical
    assert report.aim == ppo.risk.aim(report.tail)
    assert report.aim >= rarer.limit + 0.01


def test_the_margin_is_that_of_the_settings():
    made = control(0, **{"risk.cvar_margin": 1.645})
    assert made.aim(tail(-9.0, error=0.4)) == pytest.approx(-8.0 + 1.645 * 0.4)
    assert made.aim(tail(-9.0, error=99.0)) == pytest.approx(-8.0 + 1.645 * 0.15 * 8.0)
    assert control(0, **{"risk.cvar_margin": 0.0}).aim(tail(-9.0, error=0.4)) == -8.0


def test_a_multiplier_beside_a_critic_follows_the_distance_to_the_aim(monkeypatch):
    """And the gap that is reported stays that of the limit."""
    held = {name: HELD[name] for name in HELD}
    for margin in (0.0, 2.0):
        ppo = learner(settings(**{**held, "risk.cvar_margin": margin}))
        steps, inner = [], ppo.risk.dual.step
        monkeypatch.setattr(
            ppo.risk.dual, "step", lambda gap, s=steps, i=inner: (s.append(gap), i(gap))
        )
        reports = [ppo.update().risk for _ in range(6)]
        acting = [report for report in reports if report.tail.is_ready]
        assert len(steps) == len(acting) > 0
        for report, step in zip(acting, steps, strict=True):
            inside = margin * min(report.tail.error, 0.15 * report.unit)
            assert report.gap == WORLD.limit - report.average
            assert report.aim == WORLD.limit + inside
            assert step == pytest.approx((report.gap + inside) / report.unit, rel=1e-12)


# --- share and multiplier ------------------------------------------------------------------------


def test_the_share_is_that_at_which_cvar_moves_to_the_aim():
    made = control(0)
    made.scale, made.mixed = torch.ones(2), torch.tensor(0.25)
    made.balance = torch.tensor([-3.0, 9.0])
    state = tail(-8.4, error=0.0)
    made._move_share(state)
    gap = -8.0 + 8.4
    step = max(0.5, limit.LEAST_MIXED)
    change = min(limit.GAIN * gap * step / 12.0, limit.SLOPE * gap / 8.0)
    assert made.share == pytest.approx(3.0 / 12.0 + change)
    assert made.integral == pytest.approx(limit.INTEGRAL_STEP * gap / 8.0)
    assert made.multiplier == pytest.approx(made.share / (1.0 - made.share))


def test_the_integral_is_bounded_and_does_not_grow_at_either_end():
    made = control(0)
    made.scale, made.balance = torch.ones(2), torch.tensor([-3.0, 9.0])
    for _ in range(400):
        made._move_share(tail(-8.001, error=0.0))
        assert 0.0 < made.share < 1.0
    grown = made.integral
    for _ in range(4000):
        made._move_share(tail(-10.0, error=0.0))
        assert abs(made.integral) <= limit.MOST_INTEGRAL
    assert 0.0 < grown < made.integral
    made = control(0)
    made.scale = torch.ones(2)
    made.balance = torch.tensor([9.0, 9.0])  # nothing to choose between: the whole share is risk's
    made._move_share(tail(-10.0, error=0.0))
    assert (made.share, made.integral) == (limit.MOST_SHARE, 0.0)
    made.balance = torch.tensor([3.0, 9.0])  # the mean moves CVaR up by itself
    made._move_share(tail(-2.0, error=0.0))
    assert (made.share, made.integral) == (0.0, 0.0)


def test_the_largest_share_leaves_the_multiplier_finite():
    made = control(0)
    made.share = limit.MOST_SHARE
    assert made.multiplier == pytest.approx(limit.MOST_SHARE / (1.0 - limit.MOST_SHARE))
    made.share = 0.0
    assert made.multiplier == 0.0


def test_the_report_is_the_mixture_of_both_scaled_advantages():
    """(1 - x) of the mean's and x of risk's, centred under the policy, over the mixture's scale."""
    ppo = bets_learner(WORLD, **{**BROKEN, **PARTS})
    ppo.update()
    ppo.risk._move_share = lambda _: setattr(ppo.risk, "share", 0.3)
    ppo.risk._floor = lambda _: (torch.tensor(1), torch.tensor(0.25))
    pairs = torch.tensor([[6e5, 2e6], [3e5, 1e6]], dtype=torch.float64)
    ppo.risk.verified = pairs.repeat(limit.LEAST_VERIFIED // 2, 1)
    ppo.env_state, rollout = ppo._collect()
    estimates = estimate(ppo.agent, rollout, ppo.config)
    report = ppo.risk.act(rollout, estimates, math.nan, ppo.agent)
    assert report.trust == pytest.approx(0.3, abs=1e-3)
    head, grid = ppo.agent.network.head, ppo.agent.network.grid
    probability = grid_log_prob(head, rollout.parameters, grid).exp()
    mean = (report.risk_options * probability).sum(-1)
    torch.testing.assert_close(mean, torch.zeros_like(mean), rtol=0.0, atol=1e-5)
    assert report.floor == 0.25
    assert report.factor == ppo.risk.share == 0.3
    assert report.multiplier == ppo.risk.multiplier
    divisor = max(math.sqrt(float(ppo.risk.mixed)), limit.LEAST_MIXED)
    frame = limit.frame_of(ppo.risk.level, report.tail.spread, WORLD.bars, rollout.reward.device)
    _, added = ppo.risk.critic.predict(rollout, frame)
    mean = added[rollout.weight > 0.0].mean(0)  # [K]; weights are 0 or 1
    added = mean + report.trust * (added - mean)
    centred = added - (added * probability).sum(-1, keepdim=True)
    unit = float(ppo.risk.scale[1].sqrt()) * WORLD.alpha
    torch.testing.assert_close(
        report.risk_options, ppo.risk.share * centred / unit / divisor, rtol=1e-4, atol=1e-5
    )
    step = rollout.options.step
    following = ppo.risk.critic.predict_following(ppo.agent, rollout, frame, 0)
    earns = step.reward + torch.where(step.terminated, 0.0, following)
    own = earns - (earns * probability).sum(-1, keepdim=True)
    whole = (1.0 - ppo.risk.share) * own / float(ppo.risk.scale[0].sqrt()) / divisor
    mixed = whole + report.risk_options
    p = probability[..., 1:2]
    pull = (torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0]) - p) / (p * (1.0 - p)).sqrt()
    pulled = torch.where(p < 0.5, 0.75 * mixed + 0.25 * pull, mixed)
    torch.testing.assert_close(report.options, pulled, rtol=1e-4, atol=1e-4)


def test_differences_between_states_are_trusted_as_far_as_fresh_rollouts_bear_them_out(monkeypatch):
    """By loops over rows and actions: what was predicted before the rollout was learned from."""
    monkeypatch.setattr(limit, "LEAST_VERIFIED", 3)
    ppo = bets_learner(WORLD, **{**BROKEN, **PARTS})
    pairs = []
    for update in range(4):
        ppo.env_state, rollout = ppo._collect()
        estimates = estimate(ppo.agent, rollout, ppo.config)
        critic, learn = ppo.risk.critic, ppo.risk.critic.learn

        def learn_after(agent, frame, *rest, learn=learn, critic=critic, rollout=rollout, **more):
            if critic.updates > 0:
                pairs.append(agreement(critic, agent, rollout, frame))
            return learn(agent, frame, *rest, **more)

        critic.learn = learn_after
        report = ppo.risk.act(rollout, estimates, math.nan, ppo.agent)
        critic.learn = learn
        if update < 3:  # two rollouts refute nothing
            assert report.trust == 1.0
    assert len(pairs) == 3
    torch.testing.assert_close(
        ppo.risk.verified, torch.tensor(pairs, dtype=torch.float64), rtol=1e-4, atol=1e-12
    )
    shorter = limit.frame_of(report.level, report.tail.spread, 2, rollout.reward.device)
    torch.testing.assert_close(
        critic.verify(ppo.agent, rollout, shorter),
        torch.tensor(agreement(critic, ppo.agent, rollout, shorter), dtype=torch.float64),
        rtol=1e-4,
        atol=1e-12,
    )
    (p, q), n = zip(*pairs, strict=True), len(pairs)
    slope = sum(p) / sum(q)
    squares = sum((x - slope * y) ** 2 for x, y in pairs)
    error = math.sqrt(n / (n - 1) * squares) / sum(q)
    assert report.trust == pytest.approx(min(max(slope + 2.0 * error, 0.0), 1.0), rel=1e-4)


def agreement(critic, agent, rollout, frame):
    """Return the means of prediction times outcome and of the squared prediction."""
    _, added = critic.predict(rollout, frame)
    following = critic.predict_following(agent, rollout, frame, 1)
    step, (rows, batch, count) = rollout.options.step, added.shape
    level, states = float(frame.level), []
    for t in range(rows):
        for b in range(batch):
            before = float(rollout.return_so_far[t, b])
            worth = []
            for a in range(count):
                reward = float(step.reward[t, b, a])
                own = min(before + reward - level, 0.0) - min(before - level, 0.0)
                ends = bool(step.terminated[t, b, a]) or int(rollout.length[t, b]) >= frame.horizon
                worth.append(own + (0.0 if ends else float(following[t, b, a])))
            middle = sum(worth) / count
            states.append(
                (float(rollout.weight[t, b]), added[t, b].tolist(), [x - middle for x in worth])
            )
    whole = sum(weight for weight, _, _ in states)
    product = square = 0.0
    for a in range(count):
        said = sum(w * x[a] for w, x, _ in states) / whole
        came = sum(w * y[a] for w, _, y in states) / whole
        product += sum(w * (x[a] - said) * (y[a] - came) for w, x, y in states) / whole
        square += sum(w * (x[a] - said) ** 2 for w, x, _ in states) / whole
    return product, square


def test_the_critic_is_verified_by_the_last_rollouts_alone(monkeypatch):
    monkeypatch.setattr(limit, "VERIFIED", 2)
    ppo = bets_learner(WORLD, **{**BROKEN, **PARTS})
    seen = []
    for _ in range(4):
        ppo.update()
        seen.append(None if ppo.risk.verified is None else ppo.risk.verified.clone())
    assert seen[0] is None
    assert seen[1].shape == (1, 2)
    assert torch.equal(seen[3], torch.stack((seen[2][1], seen[3][1])))


def test_ten_rollouts_verify_a_critic_and_fewer_do_not():
    """Of predictions that were three tenths right; the tenth is that of the update itself."""
    for count, trust in ((8, 1.0), (9, 0.3)):
        ppo = bets_learner(WORLD, **BROKEN)
        ppo.update()
        ppo.risk.verified = torch.tensor([[3e5, 1e6]], dtype=torch.float64).repeat(count, 1)
        assert ppo.update().risk.trust == pytest.approx(trust, abs=1e-3)


def test_a_critic_may_be_trusted_whole_and_no_floor_pulls_unless_set():
    ppo = bets_learner(WORLD, **{**BROKEN, "risk.cvar_trust": "full"})
    for _ in range(4):
        report = ppo.update().risk
    assert (report.trust, report.floor, ppo.risk.verified) == (1.0, 0.0, None)


def test_all_of_the_share_is_risks_where_nothing_sure_keeps_the_limit():
    """Held actions have CVaRs of -12 and below; the limit is -8."""
    constant = [[-12.0, -13.0, -14.0, -15.0, 9.0 if i else -99.0] for i in range(40)]
    made = filled(control(0), constant, [0.0] * 40)
    made.scale, made.balance = torch.ones(2), torch.tensor([-3.0, 9.0])

    def share(cvar):
        made.integral = 0.0
        made._move_share(tail(cvar, error=0.0))
        return made.share

    assert share(-8.4) == limit.MOST_SHARE
    assert share(-7.6) < 3.0 / 12.0  # the limit is kept: less than the share at which CVaR stays
    assert share(-12.4) < limit.MOST_SHARE  # some held action is more cautious
    made = filled(control(0), [[0.0, *row[1:]] for row in constant], [0.0] * 40)
    made.scale, made.balance = torch.ones(2), torch.tensor([-3.0, 9.0])
    assert share(-8.4) == pytest.approx(3.0 / 12.0 + limit.SLOPE * 0.4 / 8.0, abs=0.06)
    assert share(-8.4) < 0.5


# --- floor ---------------------------------------------------------------------------------------


def filled(made, constant, result, *, update=0):
    """Give a control remembered draws: what held actions made of them, and the policy."""
    ppo = bets_learner(WORLD, **HELD)
    ppo.update()
    kept, count = ppo.risk.draws.kept, len(result)
    whole = Draws(
        state=tuple(column[:1].expand(count, *column.shape[1:]) for column in kept.state),
        observation=kept.observation[:1].expand(count, -1),
        score=torch.arange(count, dtype=torch.float64),
        result=torch.tensor(result, dtype=torch.float64),
        measured=torch.full((count,), update),
        constant=torch.tensor(constant, dtype=torch.float64),
        is_scored=torch.ones(count, dtype=torch.bool),
    )
    made.draws.load_state_dict({"kept": whole._asdict(), "open": None}, torch.device("cpu"))
    return made


def test_the_floor_is_the_best_held_action_that_keeps_the_limit():
    """Action 4 earns most and loses 20 in a tenth of the draws; of the others 2 earns most."""
    made, count = control(0, **PARTS), 40
    lost = [i < count // 10 for i in range(count)]
    constant = [[0.0, 1.0, 2.0, 1.5, -20.0 if out else 9.0] for out in lost]
    filled(made, constant, [0.1 * (i % 3) for i in range(count)])
    best, share = made._floor(tail(-4.0, error=0.1))
    assert int(best) == 2
    assert float(share) == 0.5  # the gaps are 2 less .0, .1 and .2
    filled(made, constant, [2.5 + 0.1 * (i % 3) for i in range(count)])
    best, share = made._floor(tail(-4.0, error=0.1))
    assert (int(best), float(share)) == (2, 0.0)  # the policy earns more


def test_the_floor_counts_the_results_of_the_present_policy_alone():
    made = filled(control(0, **PARTS), [[0.0, 1.0, 2.0, 0.0, 0.0]] * 40, [0.0] * 20 + [3.0] * 20)
    made.draws.kept.measured[:20] = 0
    made.draws.kept.measured[20:] = 9
    made.updates = 9
    assert float(made._floor(tail(-4.0))[1]) == 0.0
    made.draws.kept.result[20:] = 1.0
    assert float(made._floor(tail(-4.0))[1]) == 0.5


def test_there_is_no_floor_where_no_held_action_keeps_the_limit_or_too_little_is_known():
    made = filled(control(0, **PARTS), [[-9.0, -9.0, -10.0, -11.0, -12.0]] * 40, [-30.0] * 40)
    assert float(made._floor(tail(-30.0))[1]) == 0.0
    made = filled(control(0, **PARTS), [[0.0, 0.0, 0.0, 0.0, 0.0]] * 40, [-30.0] * 40)
    assert float(made._floor(tail(-30.0))[1]) == 0.5
    assert float(made._floor(tail(-30.0, ready=False))[1]) == 0.0


def test_a_held_action_of_a_grid_is_pulled_to_at_its_own_place():
    world = dataclasses.replace(COST, continuous=True)
    made = bets_learner(world, **limited(world, **{"risk.cvar_limit": -0.9})).risk
    places = made._held_places
    assert places.tolist() == [0, 5, 10, 15, 20]
    assert torch.equal(made._held_actions, made.grid[places])


def test_all_of_the_worst_draws_have_an_outcome_of_the_last_replay():
    """A few of them would leave the estimate of a rare loss to chance."""
    ppo = bets_learner(WORLD, **HELD, **{"ppo.n_envs": 64})
    for _ in range(9):
        ppo.update()
    draws = ppo.risk.draws
    worst = draws.is_risky(WORLD.alpha)
    assert int(worst.sum()) > 16
    assert set(draws.kept.measured[worst].tolist()) == {8}  # counted from 0; every other update


def test_the_scales_are_slow():
    ppo = bets_learner(WORLD, **HELD)
    sizes, seen = [], []
    for _ in range(3):
        ppo.env_state, rollout = ppo._collect()
        before = ppo.risk.scale
        estimates = estimate(ppo.agent, rollout, ppo.config)
        report = ppo.risk.act(rollout, estimates, math.nan, ppo.agent)
        sizes.append(report.term**2)
        seen.append(float(ppo.risk.scale[1]))
        del before
    # the plain mean of the first ones: a moving average that began with nothing
    assert seen == pytest.approx([sizes[0], sum(sizes[:2]) / 2, sum(sizes) / 3], rel=1e-5)


# --- waiting -------------------------------------------------------------------------------------


def test_share_and_integral_stand_while_the_policy_is_not_trained():
    rarer = KNOWN["one-bet-4"]
    ppo = bets_learner(
        rarer, **limited(rarer), **{"ppo.critic_grad_warmup_updates": 3, "ppo.n_envs": 64}
    )
    for _ in range(3):
        update = ppo.update()
        assert (ppo.risk.share, ppo.risk.integral, ppo.risk.bound_updates) == (0.0, 0.0, 0)
        assert update.risk.tail.is_ready
        assert math.isfinite(update.risk.loss)  # but the critic learns
    ppo.update()
    assert ppo.risk.share > 0.0
    assert ppo.risk.integral != 0.0


def test_before_there_are_enough_outcomes_the_share_stands_and_the_critic_learns():
    ppo = bets_learner(WORLD, **{**BROKEN, "risk.cvar_min_samples": 80})
    sources = []
    for _ in range(4):
        update = ppo.update()
        sources.append(update.risk.source)
        if not update.risk.tail.is_ready:
            assert ppo.risk.share == 0.0
            assert math.isfinite(update.risk.loss)
    assert sources == [SOURCES[0], SOURCES[0], SOURCES[1], SOURCES[1]]  # 32 episodes an update
    assert ppo.risk.share > 0.0


def test_all_actions_without_a_limit_have_no_share_of_risk():
    ppo = bets_learner(WORLD, **{"ppo.policy_gradient": "all_actions"})
    for _ in range(3):
        update = ppo.update()
        assert (ppo.risk.share, update.risk.multiplier, update.risk.factor) == (0.0, 0.0, 0.0)
        assert float(update.risk.risk_options.abs().max()) == 0.0
        assert float(update.risk.options.abs().max()) > 0.1
        assert not update.risk.is_infeasible
        assert math.isnan(update.risk.gap)
        assert math.isnan(update.risk.aim)
        assert ppo.risk.level == 0.0
    assert ppo.config.risk.form == "budget"


# --- out of reach --------------------------------------------------------------------------------


def bound(ppo, updates):
    """Let the share have been at its largest for some updates."""
    ppo.risk.bound_updates = updates
    return ppo.risk


def without_a_way(updates):
    """Return a learner whose draws let every action that is held throughout end at 0.4."""
    changes = {"risk.cvar_limit": 0.5, "risk.cvar_infeasible_updates": updates}
    ppo = bets_learner(WORLD, **{**HELD, **changes})
    ppo.update()
    kept = ppo.risk.draws.kept
    ppo.risk.draws.kept = kept._replace(constant=torch.full_like(kept.constant, 0.4))
    return ppo


def test_a_limit_that_a_constant_action_keeps_is_never_out_of_reach():
    ppo = bets_learner(WORLD, **HELD)
    ppo.update()
    made = bound(ppo, 10**6)
    held = made.draws.constant_returns()
    assert held[:, 0].tolist() == [0.0] * len(held)  # doing nothing
    assert not made.is_infeasible(tail(-80.0, error=0.1))


def test_a_limit_is_out_of_reach_if_the_most_cautious_policies_surely_break_it():
    ppo = without_a_way(updates=3)
    surely = tail(-1.0, error=0.1)
    assert bound(ppo, 3).is_infeasible(surely)
    assert not bound(ppo, 2).is_infeasible(surely)  # not for long enough
    assert not bound(ppo, 3).is_infeasible(tail(0.4, error=0.1))  # within its interval
    assert bound(ppo, 3).is_infeasible(tail(0.4, error=0.05))


def test_an_action_that_keeps_it_in_the_tail_of_all_draws_is_enough():
    ppo = without_a_way(updates=1)
    made, surely = bound(ppo, 1), tail(-1.0, error=0.1)
    held = made.draws.kept.constant
    held[:, 2] = 0.6
    assert not made.is_infeasible(surely)
    held[0, 2] = -99.0  # one of 16 draws is more than the worst 5 %
    assert made.is_infeasible(surely)


def test_updates_at_the_largest_share_are_counted_in_a_row():
    made = control(0, **PARTS)
    made.scale, made.balance = torch.ones(2), torch.tensor([9.0, 9.0])
    for count in (1, 2, 3):
        made._move_share(tail(-10.0, error=0.0))
        assert made.bound_updates == count
    made.balance = torch.tensor([-3.0, 9.0])
    made._move_share(tail(-8.1, error=0.0))
    assert made.bound_updates == 0


# --- prediction ----------------------------------------------------------------------------------


def test_the_predicted_cvar_is_that_of_the_shortfall_where_episodes_begin():
    ppo = bets_learner(WORLD, **HELD)
    ppo.update()
    ppo.env_state, rollout = ppo._collect()
    made = ppo.risk
    made.level = -3.0
    shortfall = torch.arange(rollout.reward.numel(), dtype=torch.float32).reshape(
        rollout.reward.shape
    )
    first = shortfall[rollout.length == 1]
    assert len(first) == 16
    expected = -3.0 + float(first.mean()) / WORLD.alpha
    assert made._predicted(float(made._shortfall(rollout, shortfall))) == pytest.approx(expected)
    made.level = 2.0  # an episode begins below it: 2 of shortfall that no step adds
    expected = 2.0 + (float(first.mean()) - 2.0) / WORLD.alpha
    assert made._predicted(float(made._shortfall(rollout, shortfall))) == pytest.approx(expected)
    none = dataclasses.replace(rollout, length=rollout.length + 2)
    assert math.isnan(made._predicted(float(made._shortfall(none, shortfall))))


def test_a_rollout_of_a_fixed_policy_is_estimated_and_predicted_right():
    """Four bets of one unit each, at 1.6 % of -20: the world's own figures."""
    still = {
        "ppo.learning_rate": 1e-8,
        "ppo.learning_rate_final": 1e-8,
        "ppo.optimizer_lr_min": 0.0,
    }
    ppo = bets_learner(WORLD, **{**HELD, **still, "ppo.n_envs": 512})
    bets_policy(ppo.agent, WORLD, (1e-6, 1.0, 1e-6, 1e-6, 1e-6))
    for _ in range(8):
        report = ppo.update().risk
    loss = 1.0 - 0.984**4
    # CVaR of 5 %: all losing episodes (6.2 %) lose about 17: the worst 5 % of them all lose
    assert loss > 0.05
    assert report.tail.empirical == pytest.approx(-17.0, rel=0.05)
    assert report.tail.level == -17.0


def test_the_generators_of_a_control_are_its_own():
    """No stream of the learner is drawn from: a run without a limit has the same draws."""
    held, free = bets_learner(WORLD, **HELD), bets_learner(WORLD)
    (_, one), (_, other) = held._collect(), free._collect()
    assert torch.equal(one.reward[0], other.reward[0])
    for ppo in (held, free):
        ppo.update()
    own = set(held.generators.state()) - set(free.generators.state())
    streams = ("memory", "replay", "task")
    assert own == {f"torch:risk.{name}" for name in streams}
    assert build_control(free.task, free.agent, free.config, free.generators) is None
