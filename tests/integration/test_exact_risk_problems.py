"""Problems of two and of ten steps in which every law is known: is the risk advantage right?"""

import functools

import pytest
import torch

from exact_risk import (
    FOUR,
    TEN,
    TWO,
    advantages,
    analytic_gradient,
    ascend,
    constrained_optimum,
    cvar,
    enumerated_episodes,
    enumerated_rollout,
    gradient_of_columns,
    gradient_of_episodes,
    policy_gradient,
    random_logits,
    value_at_risk,
    visits,
)
from stormsail.algorithms.config import RiskConfig
from stormsail.algorithms.risk_advantage import Trace, risk_advantage

GAMBLES = pytest.mark.parametrize("gamble", [TWO, TEN], ids=["two steps", "ten steps"])
STARTS = 12


def expected_gradient(gamble, policy, form):
    """Return the sum over all visits, bets and pays of chance * A_risk * grad log pi."""
    found = enumerated_rollout(gamble, policy)
    level = float(value_at_risk(gamble, visits(gamble, policy)[-1]))
    advantage = risk_advantage(
        form, found.agent, found.rollout, found.estimates, alpha=gamble.alpha, level=level
    )
    return gradient_of_columns(found, policy, advantage)


# Quicker than the defaults, which are made for estimates that lag: here the tail is known exactly.
GAINS = {"cvar_kp": 2.0, "cvar_ki": 0.05, "cvar_kd": 1.0, "cvar_lambda_max": 10.0}


def constraint(gamble, limit, form="budget", **changes):
    return RiskConfig(
        cvar_use_constraint=True,
        cvar_limit=limit,
        cvar_alpha=gamble.alpha,
        cvar_policy_mode=form,
        **{**GAINS, **changes},
    )


@functools.cache
def best(gamble, limit):
    return constrained_optimum(gamble, limit)[0]


def test_the_laws_of_two_steps_by_hand():
    """Bet 1 in both rounds: +2 with .81, -1 with .18, -4 with .01.

    The worst quarter: .01 of -4, .18 of -1 and .06 of +2, so (-.04 - .18 + .12) / .25 = -.4.
    """
    policy = torch.zeros(2, TWO.places, 3, dtype=torch.float64)
    policy[:, :, 1] = 1.0
    law = visits(TWO, policy)[-1]
    expected = {-4: 0.01, -1: 0.18, 2: 0.81}
    for place, chance in enumerate(law.tolist()):
        assert chance == pytest.approx(expected.get(place + TWO.low, 0.0), abs=1e-15)
    assert float(cvar(TWO, law)) == pytest.approx(-0.4, abs=1e-12)
    assert float(value_at_risk(TWO, law)) == 2.0
    # Without a limit the third bet is best: 2 * (.8 * 3 - .2 * 6) = 2.4.
    assert best(TWO, -12.0) == pytest.approx(2.4, abs=1e-9)


@GAMBLES
@pytest.mark.spec("X3", "T-C3")
def test_the_budget_advantage_is_the_gradient_of_the_tail_of_whole_episodes(gamble):
    """In expectation, with the true laws as critics, gamma 1 and episodes that terminate."""
    for seed in range(3):
        logits = random_logits(gamble, 1, 1.0, seed)[0]
        _, gradient = analytic_gradient(gamble, logits)
        found = expected_gradient(gamble, logits.softmax(-1), "budget")
        assert float(gradient.abs().max()) > 0.05
        torch.testing.assert_close(found, gradient, rtol=0.0, atol=1e-10)


def traced_gradient(gamble, policy, lam):
    """Return mean and total variance of sum_t A_risk grad log pi over all courses of the game."""
    found = enumerated_episodes(gamble, policy)
    assert float(found.chance.sum()) == pytest.approx(1.0, abs=1e-12)
    level = float(value_at_risk(gamble, visits(gamble, policy)[-1]))
    advantage = risk_advantage(
        "budget", found.agent, found.rollout, found.estimates,
        alpha=gamble.alpha, level=level, trace=Trace(1.0, lam),
    )  # fmt: skip
    return gradient_of_episodes(found, policy, advantage)


@pytest.mark.parametrize("gamble", [TWO, FOUR], ids=["two steps", "four steps"])
@pytest.mark.parametrize("lam", [0.0, 0.9, 1.0])
@pytest.mark.spec("X3", "T-C3")
def test_every_trace_is_the_gradient_of_the_tail_of_whole_episodes(gamble, lam):
    """In expectation, with the true laws as critics, gamma 1 and episodes that terminate."""
    for seed in range(3):
        logits = random_logits(gamble, 1, 1.0, seed)[0]
        _, gradient = analytic_gradient(gamble, logits)
        found, _ = traced_gradient(gamble, logits.softmax(-1), lam)
        assert float(gradient.abs().max()) > 0.05
        torch.testing.assert_close(found, gradient, rtol=0.0, atol=1e-10)


def test_a_shorter_trace_has_less_variance_where_the_laws_are_true():
    """Of the gradient, over all courses: with one step less than half of that of whole episodes."""
    policy = random_logits(FOUR, 1, 1.0)[0].softmax(-1)
    found = [traced_gradient(FOUR, policy, lam)[1] for lam in (0.0, 0.5, 0.9, 1.0)]
    assert found == sorted(found)
    assert found[0] / found[-1] == pytest.approx(0.446, abs=0.001)


@GAMBLES
@pytest.mark.spec("X3")
def test_the_state_form_climbs_another_hill(gamble):
    """It is the gradient of each state's own tail, with later rounds held fixed."""
    logits = random_logits(gamble, 1, 1.0)[0]
    _, gradient = analytic_gradient(gamble, logits)
    found = expected_gradient(gamble, logits.softmax(-1), "state")
    assert float((found - gradient).abs().max()) > 0.05


def test_in_the_last_round_of_a_game_that_begins_there_both_forms_agree():
    """With one round left and nothing earned, the episode is the state."""
    one = TWO.__class__(1, TWO.bets, TWO.alpha)
    logits = random_logits(one, 1, 1.0)[0]
    _, gradient = analytic_gradient(one, logits)
    for form in ("budget", "state"):
        found = expected_gradient(one, logits.softmax(-1), form)
        torch.testing.assert_close(found, gradient, rtol=0.0, atol=1e-10)


@GAMBLES
@pytest.mark.parametrize("form", ["budget", "state"])
def test_the_short_way_to_expected_advantages_is_that_of_the_enumeration(gamble, form):
    policy = random_logits(gamble, 1, 1.0)[0].softmax(-1)
    short = policy_gradient(gamble, policy, advantages(gamble, policy, form))
    torch.testing.assert_close(short, expected_gradient(gamble, policy, form), rtol=0, atol=1e-12)


def test_no_policy_of_a_grid_beats_the_linear_programme():
    """All pairs of mixed bets in the first round with all pure ones in the second."""
    limit, found = -2.0, -float("inf")
    grid = torch.linspace(0.0, 1.0, 11, dtype=torch.float64)
    pure = torch.eye(3, dtype=torch.float64)
    seconds = torch.cartesian_prod(*[torch.arange(3)] * 4)  # after +3, +1, 0, and a loss
    policy = torch.zeros(len(seconds), 2, TWO.places, 3, dtype=torch.float64)
    policy[:, 1, :] = pure[seconds[:, 3]][:, None]
    for number, pay in enumerate((3, 1, 0)):
        policy[:, 1, pay - TWO.low] = pure[seconds[:, number]]
    for first in grid:
        for second in grid:
            if first + second > 1.0:
                continue
            mix = torch.stack([first, second, 1.0 - first - second])
            policy[:, 0, :] = mix
            law = visits(TWO, policy)[:, -1]
            held = cvar(TWO, law) >= limit
            if bool(held.any()):
                found = max(found, float((law @ TWO.lattice)[held].max()))
    assert found <= best(TWO, limit) + 1e-9
    assert found == pytest.approx(best(TWO, limit), rel=0.06)


@pytest.mark.parametrize("limit", [-2.0, -1.0])
def test_two_steps_reach_the_constrained_optimum_from_every_start(limit):
    ended = ascend(
        TWO, constraint(TWO, limit), random_logits(TWO, STARTS, 2.0), steps=300, rate=0.2
    )
    assert ended.count(best(TWO, limit), limit) == (STARTS, STARTS)
    assert float(ended.multiplier.max()) < 1.0  # far from its bound: the limit is reached


def test_the_state_form_holds_the_limit_and_pays_more_for_it():
    """Of twelve starts all hold it, and one is at the optimum."""
    config = constraint(TWO, -2.0, "state")
    ended = ascend(TWO, config, random_logits(TWO, STARTS, 2.0), steps=300, rate=0.2)
    assert ended.count(best(TWO, -2.0), -2.0) == (STARTS, 1)


@pytest.mark.parametrize("limit", [0.0, 2.0])
def test_ten_steps_reach_the_constrained_optimum_from_every_start(limit):
    ended = ascend(
        TEN, constraint(TEN, limit), random_logits(TEN, STARTS, 1.0), steps=300, rate=0.5
    )
    assert ended.count(best(TEN, limit), limit) == (STARTS, STARTS)
    assert best(TEN, limit) < 0.98 * 8.0  # without a limit the third bet pays 8: the limit costs


def test_a_slack_limit_leaves_the_multiplier_at_nothing():
    config = constraint(TWO, -12.0)
    ended = ascend(TWO, config, random_logits(TWO, STARTS, 2.0), steps=200, rate=0.2)
    assert ended.multiplier.tolist() == [0.0] * STARTS
    assert ended.count(2.4, -12.0) == (STARTS, STARTS)


def test_a_limit_beyond_every_policy_drives_the_multiplier_to_its_bound():
    """The linear programme has no solution at any level, so nothing holds this limit."""
    assert constrained_optimum(TWO, 3.0)[0] == -float("inf")
    config = constraint(TWO, 3.0, cvar_lambda_max=5.0)
    ended = ascend(TWO, config, random_logits(TWO, 2, 2.0), steps=300, rate=0.2)
    assert ended.multiplier.tolist() == [5.0, 5.0]
