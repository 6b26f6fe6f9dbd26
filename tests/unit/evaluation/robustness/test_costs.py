"""The cost that breaks even, and what goes wrong on purpose."""

import math

import numpy as np
import pytest
import torch

from backtest_lab import LEVELS, agent_for, panel, plain, rules
from simulator_lab import market, steady
from stormsail.core.errors import RangeError
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.engine.run import backtest, replay
from stormsail.evaluation.robustness.costs import (
    BreakEven,
    PrefetchedReturns,
    break_even,
    cost_sweep,
    search_break_even,
)
from stormsail.evaluation.robustness.stress import (
    crash_windows,
    figures_document,
    stress,
    with_holes,
)
from stormsail.market import MarketConfig


def free():
    rules = MarketConfig().replace(
        **{"costs.taker_fee": 0.0, "costs.half_spread": 0.0, "costs.impact": 0.0}
    )
    return BacktestConfig.from_mapping({"market": rules.model_dump(), "burn_in": 0})


def test_the_break_even_of_one_round_trip_is_worked_out_by_hand():
    bars = market(steady([100.0, 100.0, 102.0, 102.0]))
    result = replay(torch.tensor([[1.0], [0.0], [0.0], [0.0]]), bars, free())
    # everything is bought for E at a fee c: q = E / (100 (1 + c)); sold at 102 (1 - c)
    # 102 (1 - c) = 100 (1 + c)  =>  c = 2 / 202
    even = break_even(result, bars)
    assert even.cost_bp == pytest.approx(1e4 * 2.0 / 202.0, abs=0.01)
    assert even.low_bp < 1e4 * 2.0 / 202.0 < even.high_bp
    assert even.high_bp - even.low_bp <= 0.01
    assert even.reason == ""


def test_a_sweep_only_takes_what_the_costs_are():
    bars = market(steady([100.0, 100.0, 102.0, 102.0]))
    result = replay(torch.tensor([[1.0], [0.0], [0.0], [0.0]]), bars, free())
    swept = cost_sweep(result, bars)
    assert list(swept) == [0.0, 2.0, 5.0, 10.0, 20.0]
    for cost, one in swept.items():
        share = cost * 1e-4
        assert one.total_return == pytest.approx(1.02 * (1 - share) / (1 + share) - 1.0)
        assert (one.market.costs.half_spread, one.market.costs.impact) == (0.0, 0.0)


def test_costs_only_ever_hurt_the_same_decisions():
    bars = panel(200)
    agent = agent_for(bars)
    result = backtest(agent, bars, plain())
    ends = [one.equity[-1] for one in cost_sweep(result, bars).values()]
    assert ends == sorted(ends, reverse=True)
    assert ends[0] > ends[-1]


def test_deciding_anew_asks_the_agent_and_replaying_does_not():
    bars = panel(120)
    agent = agent_for(bars, gain=400.0)
    result = backtest(agent, bars, plain(delay_bars=1))
    again = cost_sweep(result, bars, agent=agent, mode="decide", costs_bp=(0.0, 200.0))
    kept = cost_sweep(result, bars, costs_bp=(0.0, 200.0))
    assert again[0.0].value is not None
    assert kept[0.0].value is None
    for one in kept.values():
        assert np.array_equal(one.weights, result.weights, equal_nan=True)
    assert not np.array_equal(again[200.0].weights, result.weights)


@pytest.mark.parametrize(
    ("root", "wanted"),
    [(37.5, 37.5), (0.004, 0.005), (999.99, 999.99)],
)
def test_sections_close_in_on_a_root(root, wanted):
    calls = []

    def returns_at(costs):
        calls.append(len(costs))
        return [root - cost for cost in costs]

    even = search_break_even(returns_at, most_bp=1000.0, tolerance_bp=0.01)
    assert even.cost_bp == pytest.approx(wanted, abs=0.01)
    assert calls == [17] * len(calls)
    assert len(calls) == 5  # 1000 / 16^5 < 0.01 <= 1000 / 16^4


@pytest.mark.parametrize("root", [37.5, 0.004, 999.99, 62.5, 125.1, 3.90625])
@pytest.mark.parametrize("bend", [1.0, 300.0, 4_000.0])
def test_asking_ahead_changes_no_answer_and_takes_two_walks(root, bend):
    walks = []

    def returns_at(costs):
        walks.append(len(costs))
        return [math.expm1(1e-4 * bend * (root - cost)) for cost in costs]

    wanted = search_break_even(returns_at, most_bp=1000.0, tolerance_bp=0.01)
    assert len(walks) == 5
    walks.clear()
    ahead = PrefetchedReturns(returns_at, most_bp=1000.0, tolerance_bp=0.01)
    assert search_break_even(ahead, most_bp=1000.0, tolerance_bp=0.01) == wanted
    # 256 steps of two rounds; then a row of 15 new costs and, twice, three rows of 15 at most
    assert walks[0] == 257
    assert len(walks) == 2
    assert walks[1] <= 15 + 2 * 3 * 15


def test_a_wrong_guess_costs_a_walk_and_changes_no_answer():
    asked = []

    def returns_at(costs):
        asked.extend(costs)
        # a step, far from where the line through its ends is 0, and a wave behind it
        return [1e-9 if cost < 101.0 else -0.5 + 0.6 * (cost > 700.0) for cost in costs]

    wanted = search_break_even(returns_at, most_bp=1000.0, tolerance_bp=0.01)
    asked.clear()
    ahead = PrefetchedReturns(returns_at, most_bp=1000.0, tolerance_bp=0.01)
    assert search_break_even(ahead, most_bp=1000.0, tolerance_bp=0.01) == wanted
    assert wanted.low_bp < 101.0 <= wanted.high_bp
    assert len(asked) == len(set(asked))  # nothing is traded twice


def test_where_there_is_no_break_even_the_reason_is_given():
    loses = search_break_even(lambda costs: [-1.0] * len(costs), most_bp=1000.0, tolerance_bp=0.01)
    assert loses == BreakEven(None, 0.0, 0.0, "nothing is earned even without costs")
    wins = search_break_even(lambda costs: [1.0] * len(costs), most_bp=1000.0, tolerance_bp=0.01)
    assert wins == BreakEven(None, 1000.0, math.inf, "something is earned even at 1000 bp")
    assert wins.document()["high_bp"] is None
    bars = market(steady([100.0] * 4))
    idle = break_even(replay(torch.zeros(4, 1), bars, free()), bars)
    assert (idle.cost_bp, idle.reason) == (None, "nothing was traded, so no cost matters")


@pytest.mark.refusal
def test_costs_outside_the_range_and_deciding_without_an_agent_are_refused():
    bars = market(steady([100.0] * 4))
    result = replay(torch.zeros(4, 1), bars, free())
    with pytest.raises(RangeError, match="below 10000 basis points; found -1"):
        cost_sweep(result, bars, costs_bp=[-1.0])
    with pytest.raises(RangeError, match="there must be an agent; found none"):
        cost_sweep(result, bars, mode="decide")


# ------------------------------------------------------------------ stress


def test_crash_windows_are_the_largest_drawdowns_that_do_not_overlap():
    worth = np.array([10, 11, 12, 6, 7, 8, 8, 8, 4, 9, 10, 9, 10.0])
    # within 2 rows: 12 to 6 at row 3 (50 %), 8 to 4 at row 8 (50 %), 10 to 9 at row 11 (10 %)
    assert crash_windows(worth, bars=2, count=3) == [(1, 3), (6, 8), (9, 11)]
    assert crash_windows(worth, bars=2, count=1) == [(1, 3)]
    assert crash_windows(np.array([1.0, 2.0, 3.0]), bars=2, count=3) == []


def test_bars_that_were_never_there_repeat_the_last_close():
    bars = panel(200, symbols=2)
    holes = with_holes(bars, chance=0.3, seed=2)
    gone = ~holes.tradable
    share = float(gone.double().mean())
    assert share == pytest.approx(0.3, abs=0.05)
    assert not gone[0].any()
    for row, column in gone.nonzero().tolist():
        for name in ("open", "high", "low", "close"):
            assert getattr(holes, name)[row, column] == holes.close[row - 1, column]
        assert holes.volume[row, column] == 0.0
    kept = ~gone
    for name in ("open", "high", "low", "close", "volume"):
        assert torch.equal(getattr(holes, name)[kept], getattr(bars, name)[kept])
    assert torch.equal(holes.funding, bars.funding)
    assert with_holes(bars, chance=0.3, seed=2).digest() == holes.digest()
    assert with_holes(bars, chance=0.3, seed=3).digest() != holes.digest()
    assert with_holes(bars, chance=0.0, seed=3).digest() == bars.digest()


def test_every_stress_is_a_backtest_of_the_same_span():
    bars = panel(240, symbols=2)
    agent = agent_for(bars)
    usual = backtest(agent, bars, plain())
    result = stress(agent, bars, plain())
    whole = ["spread x2", "spread x5", "orders 1 bar late", "bars lost", "prices stale"]
    whole.append("bars missing")
    crashes = [name for name in result if name.startswith("crash")]
    assert list(result) == [*whole, *crashes]
    assert crashes[0] == "crash 1"
    for name in whole:
        assert result[name].ts.tolist() == usual.ts.tolist()
        assert result[name].order_hash != usual.order_hash
    assert result["spread x2"].market.costs.half_spread == pytest.approx(0.0004)
    assert result["spread x5"].market.costs.half_spread == pytest.approx(0.001)
    assert result["orders 1 bar late"].trades[0].ts_ms > usual.trades[0].ts_ms
    # the feed fails, the market does not: orders meet the same opens
    assert result["bars lost"].market.degrade.drop_prob == 0.1
    assert result["bars missing"].flags["blocked"].any()
    crash = result["crash 1"]
    assert len(crash.returns) <= 7 * 24
    figures = figures_document({"crash": crash})["crash"]
    assert figures["final_equity"] == crash.equity[-1]
    assert figures["total_return"] == pytest.approx(crash.total_return)


def test_wider_spreads_and_costs_hurt_an_agent_that_cannot_see_them():
    bars = panel(150, symbols=2)
    weights = np.random.default_rng(5).choice(LEVELS, bars.shape)
    config = plain(market=rules().model_dump())
    ends = []
    for factor in (1.0, 2.0, 5.0):
        wide = config.replace(**{"market.costs.half_spread": 0.0002 * factor})
        ends.append(replay(weights, bars, wide).equity[-1])
    assert ends[0] > ends[1] > ends[2]


@pytest.mark.refusal
def test_a_chance_of_holes_is_a_share():
    with pytest.raises(RangeError, match=r"`chance` must be in \[0, 1\); found 1"):
        with_holes(panel(30), chance=1.0, seed=0)
