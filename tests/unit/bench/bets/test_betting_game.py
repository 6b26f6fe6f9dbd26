"""The betting game: its rules by hand, draws that can be repeated, and exact optima."""

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from stormsail.bench.bets import betting_exact as exact
from stormsail.bench.bets.betting_game import BettingGame, BettingRules, BettingState
from stormsail.core import task as tasks
from stormsail.core.errors import DtypeError, ShapeError

SMALL = BettingRules(tokens=4.0, bets=2, parts=2, win=0.7, most=12.0)
"""Bets of nothing, half or all; twice."""
ALPHA = 0.2


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def placed(wealth, done, uniform, rules=None):
    """Return a game with one environment for each wealth, and its state."""
    game = BettingGame(len(wealth), rules, dtype=torch.float64)
    state = BettingState(
        wealth=torch.tensor(wealth, dtype=torch.float64),
        done=torch.tensor(done),
        uniform=torch.tensor(uniform, dtype=torch.float64)[:, None].expand(-1, game.rules.bets),
        over=torch.zeros(len(wealth), dtype=torch.bool),
    )
    return game, state


# ------------------------------------------------------------------------------------- the rules


def test_a_bet_is_eighths_of_the_wealth_and_never_more_than_what_is_missing():
    """16 tokens, 3 eighths: 6 tokens. 200, 4 eighths: 100, but 56 are missing to 256."""
    wealth = [16.0, 16.0, 200.0, 200.0, 16.0, 128.0, 16.0]
    done = [0, 0, 2, 2, 1, 3, 5]
    uniform = [0.0, 0.88, 0.5, 0.9, 0.99, 0.1, 0.3]
    action = [3, 3, 4, 4, 8, 8, 0]
    game, state = placed(wealth, done, uniform)
    following, step = game.step(state, torch.tensor(action), generator())
    assert step.reward.tolist() == [6.0, -6.0, 56.0, -56.0, -16.0, 128.0, 0.0]
    assert following.wealth.tolist() == [22.0, 10.0, 256.0, 144.0, 0.0, 256.0, 16.0]
    assert step.terminated.tolist() == [False, False, True, False, True, True, True]
    assert step.truncated.tolist() == [False] * 7
    assert step.info.sample_weight.tolist() == [1.0] * 7


def test_each_bet_has_its_own_draw():
    """Wins and losses in turn, an eighth each time: 16 (9/8) (7/8) and so on."""
    game, state = placed([16.0], [0], [0.5])
    state = state._replace(uniform=torch.tensor([[0.0, 0.9, 0.1, 0.95, 0.2, 0.99]]).double())
    wealth = []
    for _ in range(6):
        state, _ = game.step(state, torch.tensor([1]), generator())
        wealth.append(float(state.wealth))
    assert wealth == list(16.0 * np.cumprod([9 / 8, 7 / 8] * 3))


def test_the_step_after_an_end_starts_a_new_game_with_new_draws():
    game, state = placed([0.0, 22.0], [4, 1], [0.5, 0.5])
    state = state._replace(over=torch.tensor([True, False]))
    following, step = game.step(state, torch.tensor([8, 0]), generator(3))
    fresh = torch.rand(2, 6, dtype=torch.float64, generator=generator(3))
    assert step.reward.tolist() == [0.0, 0.0]
    assert step.info.sample_weight.tolist() == [0.0, 1.0]
    assert step.terminated.tolist() == [False, False]
    assert following.wealth.tolist() == [16.0, 22.0]
    assert following.done.tolist() == [0, 2]
    assert torch.equal(following.uniform[0], fresh[0])
    assert torch.equal(following.uniform[1], state.uniform[1])


def test_an_observation_shows_bets_left_and_wealth_on_two_scales():
    game, _ = placed([16.0], [0], [0.5])
    seen = game.observe(torch.tensor([0, 3, 6]), torch.tensor([16.0, 0.0, 256.0]))
    expected = [
        [1.0, 1 / 16, np.log(17.0) / np.log(257.0)],
        [0.5, 0.0, 0.0],
        [0.0, 1.0, 1.0],
    ]
    torch.testing.assert_close(seen, torch.tensor(expected, dtype=seen.dtype))
    assert game.observation_names == ("bets_left", "wealth", "log_wealth")
    assert game.observation_size == 3


def test_a_game_is_at_most_six_bets_and_float32_holds_every_wealth():
    game = BettingGame(4096)
    source = generator(1)
    state, _ = game.reset(source)
    total = torch.zeros(4096)
    running = torch.ones(4096, dtype=torch.bool)
    actions = generator(2)
    reachable = [torch.from_numpy(wealth) for wealth in exact.tree_of(game.rules).wealth]
    for number in range(game.episode_steps):
        action = torch.randint(9, (4096,), generator=actions)
        state, step = game.step(state, action, source)
        total += running * step.reward
        wealth = state.wealth[running].double()
        assert bool(torch.isin(wealth, reachable[number + 1]).all())
        assert torch.equal(state.wealth[running], 16.0 + total[running])
        running &= ~step.terminated
    assert not bool(running.any())


@pytest.mark.refusal
def test_an_action_of_another_shape_or_type_is_refused():
    game, state = placed([16.0], [0], [0.5])
    with pytest.raises(ShapeError, match=r"\(1,\)"):
        game.step(state, torch.tensor([1, 2]), generator())
    with pytest.raises(DtypeError, match="int64"):
        game.step(state, torch.tensor([1.0]), generator())


# ---------------------------------------------------------------------------- what others would do


def test_alternatives_are_what_each_action_makes_of_the_step():
    game = BettingGame(512)
    source = generator(5)
    state, _ = game.reset(source)
    every = torch.arange(9)
    columns = [game.observation_names.index(name) for name in tasks.account_names(game)]
    for _ in range(14):  # two games and more
        result = tasks.alternatives(game, state, every)
        playing = ~state.over
        for action in every:
            _, step = game.step(state, action.expand(512), generator())
            assert torch.equal(step.reward[playing], result.reward[playing, action])
            assert torch.equal(step.terminated[playing], result.terminated[playing, action])
            seen = step.observation[playing][:, columns]
            assert torch.equal(seen, result.account[playing, action])
        assert bool(result.account.isfinite().all() & result.reward.isfinite().all())
        chosen = torch.randint(9, (512,), generator=source)
        state, _ = game.step(state, chosen, source)


def test_a_game_repeats_itself_whatever_the_generator():
    game = BettingGame(64)
    start, _ = game.reset(generator(7))
    actions = torch.randint(9, (6, 64), generator=generator(8))
    rewards = []
    for seed in (1, 2):
        state, source, running, rows = start, generator(seed), torch.ones(64).bool(), []
        for action in actions:
            state, step = game.step(state, action, source)
            rows.append(torch.where(running, step.reward, 0.0))
            running &= ~step.terminated
        rewards.append(torch.stack(rows))
    assert torch.equal(*rewards)
    assert tasks.episode_steps(game) == 6


# ------------------------------------------------------------------------------- exact evaluation


def tail_mean(outcomes, alpha):
    """Mean of the worst share of a list of (value, chance), filled from below."""
    left, total = alpha, 0.0
    for value, chance in sorted(outcomes):
        taken = min(left, chance)
        total, left = total + taken * value, left - taken
    return total / alpha


def played(rules, choose):
    """Return (return, chance) of every sequence of actions and draws of a policy by recursion.

    `choose(done, wealth)` gives the probabilities of the actions.
    """

    def follow(done, wealth, chance):
        if done == rules.bets or wealth in (0.0, rules.most):
            return [(wealth - rules.tokens, chance)]
        outcomes = []
        for action, probability in enumerate(choose(done, wealth)):
            stake = min(wealth * action / rules.parts, rules.most - wealth)
            for sign, odds in ((1.0, rules.win), (-1.0, 1.0 - rules.win)):
                if probability * odds > 0.0:
                    outcomes += follow(done + 1, wealth + sign * stake, chance * probability * odds)
        return outcomes

    return follow(0, rules.tokens, 1.0)


@pytest.mark.parametrize("rules", [SMALL, BettingRules(bets=3)])
def test_the_tail_of_a_policy_is_that_of_every_game_played(rules):
    tree = exact.tree_of(rules)
    source = np.random.default_rng(3)
    policy = [
        source.dirichlet(np.ones(rules.parts + 1), len(wealth)) for wealth in tree.wealth[:-1]
    ]

    def choose(done, wealth):
        return policy[done][np.flatnonzero(tree.wealth[done] == wealth)[0]]

    outcomes = played(rules, choose)
    result = tree.tail(policy, alpha=ALPHA)
    assert sum(chance for _, chance in outcomes) == pytest.approx(1.0, abs=1e-12)
    assert result.mean == pytest.approx(sum(x * chance for x, chance in outcomes), abs=1e-10)
    assert result.cvar == pytest.approx(tail_mean(outcomes, ALPHA), abs=1e-10)
    ordered = sorted(outcomes)
    place = np.searchsorted(np.cumsum([chance for _, chance in ordered]), ALPHA)
    assert result.value_at_risk == ordered[place][0]


def test_betting_all_is_worth_what_four_wins_are():
    """Four wins of .88 each make 256: .88**4 * 240 - (1 - .88**4) * 16; the rest is ruin."""
    tree = exact.tree_of(BettingRules())
    policy = [np.tile(np.eye(9)[8], (len(wealth), 1)) for wealth in tree.wealth[:-1]]
    result = tree.tail(policy, alpha=ALPHA)
    assert result.mean == pytest.approx(0.88**4 * 256.0 - 16.0, abs=1e-10)
    assert result.cvar == -16.0
    assert result.value_at_risk == -16.0
    nothing = [np.tile(np.eye(9)[0], (len(wealth), 1)) for wealth in tree.wealth[:-1]]
    assert tree.tail(nothing, alpha=ALPHA) == (0.0, 0.0, 0.0)


# ------------------------------------------------------------------------------------ exact optima


def deterministic(rules):
    """Return the outcomes of every deterministic policy of a game of two bets."""
    actions = range(rules.parts + 1)
    results = []
    for first in actions:
        for after_win, after_loss in itertools.product(actions, repeat=2):

            def choose(done, wealth, first=first, win=after_win, loss=after_loss):
                if done == 0:
                    return np.eye(rules.parts + 1)[first]
                return np.eye(rules.parts + 1)[win if wealth > rules.tokens else loss]

            results.append(played(rules, choose))
    return results


def mixtures(results, limit):
    """Return the best mean of a mixture of policies with a CVaR of at least `limit`.

    A mixture draws a policy before the game. For each level nu a linear program over the weights
    of the policies; the best nu is an outcome.
    """
    best = -np.inf
    mean = np.array([sum(x * chance for x, chance in outcomes) for outcomes in results])
    for level in sorted({x for outcomes in results for x, _ in outcomes}):
        utility = np.array([
            level + sum(min(x - level, 0.0) * chance for x, chance in outcomes) / ALPHA
            for outcomes in results
        ])  # fmt: skip
        solved = linprog(
            -mean, A_ub=-utility[None], b_ub=[-limit], A_eq=np.ones((1, len(mean))), b_eq=[1.0]
        )
        if solved.status == 0:
            best = max(best, -solved.fun)
    return best


@pytest.mark.parametrize(
    "rules", [SMALL, BettingRules(bets=2), BettingRules(tokens=5.0, bets=2, parts=4, most=9.0)]
)
def test_the_best_cvar_is_that_of_the_best_of_all_policies(rules):
    """Mixing cannot help: for a fixed level the utility is linear, so an end of it is best."""
    best = max(tail_mean(outcomes, ALPHA) for outcomes in deterministic(rules))
    assert exact.best_cvar(rules, alpha=ALPHA) == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("rules", [SMALL, BettingRules(tokens=5.0, bets=2, parts=4, most=9.0)])
@pytest.mark.parametrize("share", [-0.9, -0.5, -0.2, 0.0, 0.4, 1.0])
def test_the_best_mean_under_a_limit_is_that_of_the_best_mixture(rules, share):
    """Limits from near ruin to the largest CVaR."""
    most = exact.best_cvar(rules, alpha=ALPHA)
    limit = share * (most if share > 0.0 else rules.tokens)
    expected = mixtures(deterministic(rules), limit - 1e-12)
    assert exact.best_mean(rules, alpha=ALPHA, limit=limit) == pytest.approx(expected, abs=1e-7)


def test_a_limit_beyond_every_policy_has_no_best_mean():
    rules = BettingRules()
    most = exact.best_cvar(rules, alpha=ALPHA)
    assert exact.best_mean(rules, alpha=ALPHA, limit=most + 1e-6) == -np.inf
    assert exact.best_mean(rules, alpha=ALPHA, limit=300.0) == -np.inf


def test_the_optimum_of_the_game_of_the_paper():
    """All 6,662 levels were tried once: the best is a final wealth of 50.2734375."""
    rules, level = BettingRules(), np.array([50.2734375])
    tree = exact.tree_of(rules)
    assert [len(wealth) for wealth in tree.wealth] == [1, 17, 98, 379, 1135, 2816, 6662]
    most = exact.best_cvar(rules, alpha=ALPHA)
    assert most == pytest.approx(23.88337322816, abs=1e-9)
    shortfall = exact.solve(tree, level, np.zeros(1), np.ones(1)).shortfall
    assert float(level[0] + shortfall[0] / ALPHA) - 16.0 == pytest.approx(most, abs=1e-9)
    assert exact.best_mean(rules, alpha=ALPHA, limit=-16.0) == pytest.approx(
        151.523219669, abs=1e-6
    )


def test_the_best_mean_never_rises_with_the_limit():
    rules = BettingRules(bets=3)
    most = exact.best_cvar(rules, alpha=ALPHA)
    limits = np.linspace(-16.0, most, 9)
    means = [exact.best_mean(rules, alpha=ALPHA, limit=float(limit) - 1e-9) for limit in limits]
    assert all(low >= high - 1e-7 for low, high in itertools.pairwise(means))
    assert means[-1] >= most
