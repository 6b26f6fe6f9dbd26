"""`bets_exact`: best means against every policy tried, and exact tails of trained policies."""

import dataclasses
import math

import numpy as np
import pytest
import torch

import exact_risk
from oracles import bets as oracle
from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.run.tasks import agent_spec
from stormsail.bench.bets import bets_exact
from stormsail.bench.bets.bets_unseen import UNSEEN
from stormsail.bench.bets.bets_worlds import KNOWN, Bets, World
from stormsail.core.errors import RangeError
from stormsail.modules.agent import Agent

PLAIN = World("plain", -1.5, 2, (0.0, 1.0, 2.0), (((0.1, -3.0), (0.9, 1.0)),), alpha=0.25)
WARNED = World(
    "warned", -1.0, 2, (0.0, 1.0), (((0.02, -4.0), (0.98, 1.0)), ((0.3, -4.0), (0.7, 1.5))),
    moves=((0.6, 0.4), (0.5, 0.5)), alpha=0.1,
)  # fmt: skip
COSTLY = World(
    "costly", -1.2, 2, (0.0, 1.0, 2.0), (((0.15, -2.0), (0.85, 1.0)),), alpha=0.2, change_cost=0.25
)
SHARES = World(
    "shares", -3.0, 2, (0.0, 0.5, 1.0), (((0.1, -0.8), (0.9, 0.5)),),
    alpha=0.15, wealth=8.0, ruin=-3.5,
)  # fmt: skip


ENDED = World("ended", -4.0, 3, (0.0, 1.0), (((0.2, -3.0), (0.8, 1.0)),), alpha=0.25, ruin=-5.0)


def pay(world):
    """Return what a bar makes, written once more."""

    def rule(level, payoff, total, before):
        unit = 1.0 if world.wealth is None else world.wealth + total
        return level * unit * payoff - world.change_cost * abs(level - before)

    return rule


def every_policy(world):
    return oracle.policies(
        bars=world.bars, levels=world.levels, payoffs=world.payoffs, moves=world.moves,
        pay=pay(world), ruin=world.ruin,
    )  # fmt: skip


# --------------------------------------------------------------------------------------- best means


@pytest.mark.parametrize(
    "world", [PLAIN, WARNED, COSTLY, SHARES, ENDED], ids=lambda world: world.name
)
@pytest.mark.parametrize("part", [0.5, 1.0, 1.5])
def test_the_best_mean_is_that_of_the_best_mixture_of_all_policies(world, part):
    world = dataclasses.replace(world, limit=part * world.limit)
    expected = oracle.best_mean(every_policy(world), alpha=world.alpha, limit=world.limit)
    assert bets_exact.solve(world).mean == pytest.approx(expected, rel=2e-6)


@pytest.mark.parametrize("limit", [-6.0, -3.0, -1.0])
def test_the_best_mean_is_that_of_a_linear_programme_over_visits(limit):
    table = ((0.2, -3.0), (0.8, 1.0))
    world = World("three", limit, 3, (0.0, 1.0, 2.0), (table,), alpha=0.25)
    bets = tuple(tuple((p, round(w * x)) for p, x in table) for w in world.levels)
    expected, _ = exact_risk.constrained_optimum(exact_risk.Gamble(3, bets, 0.25), limit)
    assert bets_exact.solve(world).mean == pytest.approx(expected, rel=2e-6)


def test_one_bet_by_hand():
    # 4 % of bets lose: q of betting puts 0.04 q at -1 into a tail of 0.05, the rest of it is 0 from
    # not betting. -0.04 q / 0.05 = -0.3 at q = 0.375; each bet is worth 0.96 - 0.04 = 0.92.
    result = bets_exact.solve(KNOWN["one-bet-4"])
    assert result.mean == pytest.approx(0.375 * 0.92)
    assert result.value_at_risk == 0.0
    assert result.multiplier == pytest.approx(0.92 * 0.05 / 0.04)
    assert result.free_mean == pytest.approx(0.92)


@pytest.mark.parametrize(
    ("name", "published"),
    [("stakes-32", 4.85), ("stakes-16", 2.82), ("stakes-8", 1.60), ("stakes-4", 0.92),
     ("stakes10-12", 3.96), ("one-bet-4", 0.345), ("one-bet-10", 0.2)],
)  # fmt: skip
def test_the_published_best_means_are_met(name, published):
    assert bets_exact.solve(KNOWN[name]).mean == pytest.approx(published, abs=0.005)


def test_totals_far_below_the_limit_are_kept_together_without_an_error():
    # 12 bars whose losses reach -720: with the floor there are fewer nodes and the same means.
    world = World("deep", -30.0, 12, (0.0, 1.0, 2.0), (((0.01, -30.0), (0.99, 1.0)),))
    nodes = bets_exact._nodes(world)
    assert nodes.ends.min() == -30.0 - 12 * 2.0
    whole = bets_exact._nodes(dataclasses.replace(world, limit=-1e6))
    assert whole.ends.min() == -720.0
    for nu in (-30.0, -3.0, 5.0):
        for weight in (0.0, 0.7, 4.0, 40.0):
            expected = bets_exact._best_response(whole, nu=nu, weight=weight)
            assert bets_exact._best_response(nodes, nu=nu, weight=weight) == pytest.approx(
                expected, rel=1e-12
            )


@pytest.mark.refusal
def test_a_limit_that_no_policy_keeps_is_refused():
    with pytest.raises(RangeError) as caught:
        bets_exact.solve(dataclasses.replace(PLAIN, limit=3.5))
    assert str(caught.value) == (
        "a policy of world `plain` must be able to keep the limit; found none for 3.5. "
        "Lower the limit. [out-of-range]"
    )


def test_unseen_worlds_are_what_they_are_called():
    solved = {name: bets_exact.solve(world) for name, world in UNSEEN.items()}
    assert solved["steep"].multiplier > 2.0
    assert solved["loose"].mean == pytest.approx(solved["loose"].free_mean, rel=1e-9)
    for name in set(UNSEEN) - {"loose"}:
        assert solved[name].mean < 0.9 * solved[name].free_mean
    mixed = UNSEEN["double-or-nothing"]
    alone = [oracle.mean_and_cvar(way, alpha=mixed.alpha) for way in every_policy(mixed)]
    # Without chance of its own a policy may bet after a first payoff of 8 % that it did not stake
    # on: 0.08 of 5 (0.92 / 2 - 0.08) = 1.9. A mixture has nearly six times as much.
    assert max(mean for mean, cvar in alone if cvar >= mixed.limit) == pytest.approx(0.08 * 1.9)
    assert solved["double-or-nothing"].mean == pytest.approx(0.8796296, rel=1e-6)


# ------------------------------------------------------------------------------- trained policies


def always(*shares):
    """Return the policy that draws its level alike in every state."""
    return lambda *state: np.tile(np.array(shares), (len(state[-1]), 1))


def test_a_mixed_bet_by_hand():
    # half of the bets: 0.02 at -1, 0.5 at 0, 0.48 at +1. The tail of 0.05 is 0.02 at -1, 0.03 at 0.
    result = bets_exact.propagate(KNOWN["one-bet-4"], always(0.5, 0.5))
    assert result == pytest.approx((0.46, -0.4, 0.0, 0.0, 0.0))


@pytest.mark.parametrize("world", [PLAIN, WARNED, COSTLY, SHARES], ids=lambda world: world.name)
def test_an_agent_is_evaluated_by_its_probabilities_in_every_state(world):
    agent = untrained(world)
    returns = []

    def go_on(task, chance, bar, regime, total, before):
        if bar == world.bars or total <= world.ruin:
            returns.append((chance, total))
            return
        seen = task.observed(
            torch.tensor([regime]), torch.tensor([bar]), torch.tensor([total]).float(),
            torch.tensor([before]).float(),
        )  # fmt: skip
        drawn = agent.draw(agent.normalised(seen), agent.initial_memory(1), deterministic=True)
        shares = drawn.parameters[0].double().softmax(-1).tolist()
        for share, level in zip(shares, world.levels, strict=True):
            for p, payoff in world.payoffs[regime]:
                after = total + pay(world)(level, payoff, total, before)
                for following, move in enumerate(world.moves[regime]):
                    go_on(task, chance * share * p * move, bar + 1, following, after, level)

    go_on(Bets(world, batch=1), 1.0, 0, 0, 0.0, 0.0)
    mean, cvar = oracle.mean_and_cvar(returns, alpha=world.alpha)
    result = bets_exact.evaluate(agent, world)
    assert (result.mean, result.cvar) == pytest.approx((mean, cvar), rel=1e-6)
    assert result.mean_error == 0.0
    assert result.cvar_error < 1e-9


def untrained(world, **network):
    config = TrainConfig().replace(**{"task.name": "CartPole-v1", "network.memory": "none"})
    config = config.replace(**{f"network.{name}": value for name, value in network.items()})
    task = Bets(world, batch=1)
    agent = Agent(agent_spec(config, task), torch.Generator().manual_seed(3))
    for parameter in agent.network.parameters():  # away from the nearly uniform start
        parameter.data.mul_(3.0)
    return agent


@pytest.mark.parametrize("world", [WARNED, COSTLY, SHARES, ENDED], ids=lambda world: world.name)
def test_drawn_episodes_agree_with_the_distribution(monkeypatch, world):
    monkeypatch.setattr(bets_exact, "EPISODES", 2**16)
    agent = untrained(world)
    drawn, exact = bets_exact._drawn(agent, world), bets_exact.evaluate(agent, world)
    assert 0.0 < drawn.mean_error < 0.02
    assert abs(drawn.mean - exact.mean) < 4.0 * drawn.mean_error
    assert abs(drawn.cvar - exact.cvar) < 4.0 * drawn.cvar_error
    assert drawn.value_at_risk == pytest.approx(exact.value_at_risk, abs=1e-5)


def test_a_memory_and_continuous_actions_are_evaluated_by_drawing(monkeypatch):
    monkeypatch.setattr(bets_exact, "EPISODES", 2**14)
    free = dataclasses.replace(PLAIN, continuous=True)
    for agent, world in ((untrained(PLAIN, memory="gru"), PLAIN), (untrained(free), free)):
        assert bets_exact.evaluate(agent, world).mean_error > 0.0


def test_the_share_that_is_left_out_is_bounded():
    # 40 bars of rare losses: less likely states are dropped, and what they can change is given.
    world = World("long", -50.0, 40, (0.0, 1.0), (((0.001, -50.0), (0.999, 1.0)),))
    result = bets_exact.propagate(world, always(0.5, 0.5))
    assert result.mean == pytest.approx(40 * 0.5 * (0.999 - 0.05), rel=1e-9)
    assert 0.0 < result.cvar_error < 1e-6
    assert math.isfinite(result.cvar)
