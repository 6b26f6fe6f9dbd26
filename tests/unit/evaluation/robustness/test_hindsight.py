"""The dynamic programming against enumeration: every sequence of levels, in both ledgers."""

from decimal import Decimal
from itertools import product

import numpy as np
import pytest
import torch

from simulator_lab import at, draws, market, settings, simulator
from stormsail.core.errors import RangeError, ShapeError
from stormsail.evaluation.crosscheck.reference import reference_bars, replay
from stormsail.evaluation.robustness.hindsight import (
    Chain,
    ProportionalCosts,
    autoregressive_chain,
    best_policy,
    clairvoyant,
    drifted,
    leaked_chain,
    trade_left,
)
from stormsail.market.synthetic import path_optimum, process_of

SHORT, LONG, FINE = (-1.0, 0.0, 1.0), (0.0, 0.2, 0.6, 1.0), (-1.0, -0.5, 0.0, 0.5, 1.0)
DEAR = ProportionalCosts(fee=0.004, half_spread=0.002)
"""So dear that what pays in a bar alone often does not pay for its trades."""


def jumpy(seed, rows):
    """Return bars with gaps between them and moves of about the size of the costs."""
    rng = np.random.default_rng(seed)
    steps = rng.normal(0.0, 0.01, (rows, 2))
    closes = 100.0 * np.exp(np.cumsum(steps.sum(1)))
    opens = closes * np.exp(-steps[:, 1])
    highs, lows = np.maximum(opens, closes) * 1.001, np.minimum(opens, closes) * 0.999
    return list(zip(opens, highs, lows, closes, strict=True))


def rules(levels, bars):
    return settings(
        action="levels", levels=levels, episode_bars=bars,
        costs__taker_fee=DEAR.fee, costs__half_spread=DEAR.half_spread,
    )  # fmt: skip


def answer(panel, levels, **options):
    opens, closes = panel.open[1:, 0].numpy(), panel.close[1:, 0].numpy()
    return clairvoyant(opens, closes, levels, DEAR, **options)


def simulated_growth(panel, levels, sequences):
    """Return the log growth of each sequence of indices, [N, bars], in the simulator."""
    choice = torch.tensor(sequences)
    sim = simulator(panel, rules(levels, 1), batch=len(choice))
    state = at(sim, last_row=choice.shape[1])
    total = torch.zeros(len(choice), dtype=torch.float64)
    for index in range(choice.shape[1]):
        state, step = sim.transition(state, choice[:, index], draws(sim, index))
        total += step.reward
    return total


@pytest.mark.parametrize(("levels", "bars"), [(SHORT, 6), (LONG, 5), (FINE, 4)])
@pytest.mark.parametrize("seed", range(4))
def test_no_sequence_of_levels_earns_more_in_the_simulator(levels, bars, seed):
    panel = market(jumpy(seed, bars + 1), funding={2: 0.003, 4: -0.002})
    sequences = list(product(range(len(levels)), repeat=bars))
    growths = simulated_growth(panel, levels, sequences)
    best = answer(panel, levels, funding=panel.funding[1:, 0].numpy())
    assert best.log_growth[0] == pytest.approx(float(growths.max()), rel=1e-12, abs=1e-14)
    own = growths[sequences.index(tuple(best.choice[:, 0].tolist()))]
    assert float(own) == pytest.approx(float(growths.max()), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("seed", range(2))
def test_no_sequence_of_levels_earns_more_in_exact_decimals(seed):
    panel = market(jumpy(seed + 10, 6), funding={3: 0.002})
    config, symbol = rules(SHORT, 5), panel.symbols[0]
    bars = reference_bars(panel, symbol, impact_window=24)
    growths = {}
    for sequence in product(SHORT, repeat=5):
        records = replay(config, bars, [Decimal(weight) for weight in sequence], symbol=symbol)
        growths[sequence] = float((records[-1].equity / Decimal(10_000)).ln())
    best = answer(panel, SHORT, funding=panel.funding[1:, 0].numpy())
    assert best.log_growth[0] == pytest.approx(max(growths.values()), rel=1e-12, abs=1e-14)
    assert growths[tuple(best.weights[:, 0].tolist())] == max(growths.values())


@pytest.mark.parametrize("closed", [(1,), (3,), (2, 3), (5,), (1, 2, 4)])
def test_a_bar_that_cannot_be_traded_keeps_the_position(closed):
    panel = market(jumpy(3, 6), closed=closed)
    sequences = list(product(range(3), repeat=5))
    growths = simulated_growth(panel, SHORT, sequences)
    best = answer(panel, SHORT, tradable=panel.tradable[1:, 0].numpy())
    assert best.log_growth[0] == pytest.approx(float(growths.max()), rel=1e-12, abs=1e-14)
    own = growths[sequences.index(tuple(best.choice[:, 0].tolist()))]
    assert float(own) == pytest.approx(float(growths.max()), rel=1e-12, abs=1e-14)


def test_columns_are_solved_as_if_each_were_alone():
    rng = np.random.default_rng(1)
    opens = 100.0 * np.exp(np.cumsum(rng.normal(0.0, 0.01, (40, 3)), 0))
    closes = opens * np.exp(rng.normal(0.0, 0.01, (40, 3)))
    together = clairvoyant(opens, closes, FINE, DEAR)
    for column in range(3):
        alone = clairvoyant(opens[:, column], closes[:, column], FINE, DEAR)
        assert alone.log_growth[0] == together.log_growth[column]
        np.testing.assert_array_equal(alone.weights[:, 0], together.weights[:, column])


def test_without_a_spread_it_is_the_path_optimum_up_to_the_square_of_the_fee():
    # `path_optimum` takes c·|u − w| of the equity before the trade, the ledger c·D with
    # D = |u − w|/(1 + suc): a relative difference of c for each trade, of which there are 20
    returns = np.random.default_rng(2).normal(0.0, 0.01, 50)
    closes = 100.0 * np.cumprod(1.0 + returns)
    opens = closes / (1.0 + returns)
    ours = clairvoyant(opens, closes, SHORT, ProportionalCosts(fee=1e-4))
    total, weights = path_optimum(returns, SHORT, cost_rate=1e-4)
    assert ours.log_growth[0] == pytest.approx(total, abs=50 * 2 * 2 * 1e-8)
    np.testing.assert_array_equal(ours.weights[:, 0], weights)


def test_an_order_leaves_what_price_and_fee_leave():
    # buying with everything: E' = q·o and E = q·o(1 + h)(1 + f); selling: E' = E(1 − h)(1 − f)
    costs = ProportionalCosts(fee=0.01, half_spread=0.02)
    held, target = np.array([0.0, 1.0, 0.5, -1.0]), np.array([1.0, 0.0, 0.5, 0.0])
    left = trade_left(held, target, costs)
    expected = [1.0 / (1.02 * 1.01), 0.98 * 0.99, 1.0, 1.0 - (1.02 * 1.01 - 1.0)]
    np.testing.assert_allclose(left, expected, rtol=1e-14)


def test_a_price_that_moves_takes_the_weight_with_it():
    # 50 of 100 in a price that doubles: 100 of 150; short 50 in one that rises by half: -75 of 75
    grown, weight = drifted(np.array([0.5, -0.5, -1.0]), np.array([1.0, 0.5, 1.0]))
    np.testing.assert_allclose(grown, [np.log(1.5), np.log(0.75), -np.inf])
    np.testing.assert_allclose(weight, [2.0 / 3.0, -1.0, 0.0])


# --------------------------------------------------------------------------- the known distribution


def expected_money(chain, levels, costs, *, bars, cash, quantity, price, seen):
    """Return E log of final equity under the best decisions: a recursion over money.

    The order is found by the bisection of what is left, not by a formula.
    """
    if bars == 0:
        return np.log(cash + quantity * price)
    result = []
    for level in levels:
        money, position = ordered(cash, quantity, price, level, costs)
        values = [
            expected_money(
                chain, levels, costs, bars=bars - 1, cash=money, quantity=position,
                price=price * (1.0 + chain.returns[seen, following]), seen=following,
            )
            for following in range(len(chain.points))
        ]  # fmt: skip
        result.append(chain.transition[seen] @ np.array(values))
    return max(result)


def ordered(cash, quantity, price, level, costs):
    """Return cash and position after the order that makes the weight right, by bisection."""
    low, high = -10.0 * (cash + quantity * price), 10.0 * (cash + quantity * price)

    def after(traded):  # notional at the price before costs
        paid = traded * (1.0 + np.sign(traded) * costs.half_spread)
        return cash - paid - costs.fee * abs(paid), quantity + traded / price

    for _ in range(200):
        middle = (low + high) / 2.0
        money, position = after(middle)
        short = position * price < level * (money + position * price)
        low, high = (middle, high) if short else (low, middle)
    return after((low + high) / 2.0)


@pytest.mark.parametrize("levels", [(-1.0, 0.0, 1.0), (0.0, 0.5)])
def test_the_policy_is_worth_what_a_recursion_over_money_finds(levels):
    rng = np.random.default_rng(4)
    returns = rng.normal(0.0, 0.03, (2, 2))
    chain = Chain(np.array([0.0, 1.0]), np.array([[0.7, 0.3], [0.4, 0.6]]), returns)
    costs = ProportionalCosts(fee=0.008, half_spread=0.004)
    policy = best_policy(chain, levels, costs, bars=3)
    for seen in range(2):
        exact = expected_money(
            chain, levels, costs, bars=3, cash=1.0, quantity=0.0, price=1.0, seen=seen
        )
        assert policy.expected(np.eye(2)[seen]) == pytest.approx(exact, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("cost", [0.0, 0.0007])
@pytest.mark.parametrize(
    ("process", "chain"),
    [
        (process_of("ar1"), autoregressive_chain(0.2, 0.01)),
        (process_of("oracle"), leaked_chain(0.01)),
    ],
)
def test_a_bar_more_is_worth_the_best_growth_of_the_process(process, chain, cost):
    # for the weights 0 and 1 the process's free rebalancing costs nothing in truth either; what is
    # left are the square of the cost, twice a bar at most, and the grid: where the best level
    # changes at a point of it, a sum of steps of 0.06 deviations is off by 0.06²/12 of their size
    policy = best_policy(chain, (0.0, 1.0), ProportionalCosts(fee=cost), bars=30)
    more = (policy.worth[-1] - policy.worth[-2])[80, 0]
    expected = process.optimal(cost_rate=cost, weights=(0.0, 1.0)).log_growth
    assert more == pytest.approx(expected, abs=2.0 * cost**2 + 2e-6)
    assert expected > 0.0003


def test_the_grid_of_the_chains_is_fine_enough():
    # what doubling the grid changes is a ten-thousandth of the answer
    costs = ProportionalCosts(0.0005, 0.0002)
    for make in (lambda **size: autoregressive_chain(0.2, 0.01, **size),
                 lambda **size: leaked_chain(0.01, **size)):  # fmt: skip
        worths = []
        for grid in (161, 321):
            chain = make(grid=grid, width=5.0 if grid == 161 else 6.0)
            policy = best_policy(chain, SHORT, costs, bars=12)
            worths.append(policy.worth[-1][grid // 2, 1])
        assert worths[0] == pytest.approx(worths[1], rel=2e-4)


def test_without_costs_the_level_is_the_nearest_to_mean_over_variance():
    # φR/σ² = 0.2 R / (1e-4·0.96) rounds to 0, not 1, below R = 0.5·0.96e-4/0.2 = 2.4e-4
    policy = best_policy(autoregressive_chain(0.2, 0.01), SHORT, ProportionalCosts(), bars=5)
    seen = np.array([-0.02, -3e-4, -2e-4, 2e-4, 3e-4, 0.02])
    for left in (1, 5):
        chosen = policy.choose(np.zeros(6), seen, bars_left=left)
        np.testing.assert_array_equal(policy.levels[chosen], [-1.0, -1.0, 0.0, 0.0, 1.0, 1.0])


def test_with_costs_what_is_held_is_kept_where_the_gain_is_small():
    # at the last bar a flip from -1 to 1 costs 2c = 20 and gains 2·leak: worth it above 10
    # basis points, and closing above leak = c = 10 too, so that 0 is never best in between
    policy = best_policy(leaked_chain(0.01), SHORT, ProportionalCosts(fee=0.001), bars=20)
    seen = np.array([0.0009, 0.0011, 0.0009, 0.0011])
    held = np.array([-1.0, -1.0, 0.0, 0.0])
    last = policy.levels[policy.choose(held, seen, bars_left=1)]
    np.testing.assert_array_equal(last, [-1.0, 1.0, 0.0, 1.0])
    early = policy.levels[policy.choose(held, -seen, bars_left=20)]
    np.testing.assert_array_equal(early, [-1.0, -1.0, 0.0, -1.0])


def test_what_does_not_pay_in_the_last_bar_may_pay_with_more_to_come():
    # φR = 35 basis points are less than the 40 that entering costs; but momentum goes on, and
    # φR + φ²R + … = 70 basis points are more
    chain = autoregressive_chain(0.5, 0.01)
    policy = best_policy(chain, SHORT, ProportionalCosts(fee=0.004), bars=20)
    flat, seen = np.zeros(1), np.array([0.007])
    assert policy.levels[policy.choose(flat, seen, bars_left=1)] == 0.0
    assert policy.levels[policy.choose(flat, seen, bars_left=20)] == 1.0


# ------------------------------------------------------------------------------------ refusals


@pytest.mark.refusal
def test_arrays_of_different_shapes_are_refused():
    with pytest.raises(ShapeError) as caught:
        clairvoyant(np.ones((3, 2)), np.ones(3), SHORT, DEAR)
    assert str(caught.value) == (
        "`opens` must be [T] or [T, S], and everything else shaped like it; found closes (3,) and "
        "opens (3, 2). Pass one row for each bar in which an order fills. [shape-mismatch]"
    )


@pytest.mark.refusal
def test_prices_that_are_none_are_refused():
    with pytest.raises(RangeError) as caught:
        clairvoyant(np.array([1.0, 0.0]), np.ones(2), SHORT, DEAR)
    assert str(caught.value) == (
        "`opens` must be finite and greater than 0; found 0.0 to 1.0. Leave out rows before a "
        "symbol's first bar. [out-of-range]"
    )


@pytest.mark.refusal
def test_levels_that_are_none_are_refused():
    with pytest.raises(RangeError) as caught:
        clairvoyant(np.ones(2), np.ones(2), (), DEAR)
    assert str(caught.value) == (
        "`levels` must be one or more finite weights; found []. Pass for example (-1, 0, 1). "
        "[out-of-range]"
    )


@pytest.mark.refusal
def test_a_level_that_a_return_of_the_chain_ruins_is_refused():
    with pytest.raises(RangeError) as caught:
        best_policy(leaked_chain(0.05), (0.0, 10.0), ProportionalCosts(), bars=2)
    assert str(caught.value) == (
        "every level must leave something after every return of the chain; found levels "
        "[0.0, 10.0] and returns from -0.25 to 0.25. Use levels nearer to 0. [out-of-range]"
    )
