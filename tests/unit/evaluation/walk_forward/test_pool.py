"""Folds and seeds as one account, in numbers that can be worked out by hand."""

import numpy as np
import pytest
import torch

from simulator_lab import START_MS, market, steady
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.engine.run import replay
from stormsail.evaluation.walk_forward.pool import FoldBacktests, charged_bp, pool
from stormsail.market import MarketConfig

HOUR_MS = 3_600_000
BARS = market(steady([100.0, 100.0, 110.0, 99.0, 99.0, 198.0]))


def traded(weights, *, first, last, capital=1_000.0, fee=0.0, half_spread=0.0):
    """Trade weights over the rows from first to last; what a pass of one agent would be."""
    rules = MarketConfig().replace(
        **{"costs.taker_fee": fee, "costs.half_spread": half_spread, "costs.impact": 0.0}
    )
    config = BacktestConfig.from_mapping(
        {"market": rules.model_dump(), "burn_in": 0, "capital": capital}
    )
    asked = torch.full((6, 1), torch.nan)
    asked[first : first + len(weights), 0] = torch.tensor(weights)
    part = BARS.between(int(BARS.ts[first]), int(BARS.ts[last]) + 1)
    return replay(asked[first : last + 1], part, config)


def marks(first, last):
    return START_MS + HOUR_MS * np.arange(first + 1, last + 2)


def pooled(*folds, capital=2_000.0):
    return pool(list(folds), BARS.interval, capital=capital)


def test_capital_is_divided_anew_at_each_fold():
    one = FoldBacktests(
        marks(0, 2), [traded([1.0, 1.0], first=0, last=2), traded([0.0, 0.0], first=0, last=2)]
    )
    two = FoldBacktests(
        marks(2, 5),
        [traded([0.0] * 3, first=2, last=5), traded([1.0, 1.0, 1.0], first=2, last=5)],
    )
    result = pooled(one, two)
    # 1,000 each: the first grows by a tenth, 2,100. 1,050 each: the second buys at 99 and doubles.
    assert result.equity.tolist() == pytest.approx([2000.0, 2000.0, 2100.0, 2100.0, 2100.0, 3150.0])
    assert result.fold_returns == pytest.approx((0.05, 0.5))
    assert result.seed_equity[-1].tolist() == pytest.approx([1100.0, 2000.0])
    assert result.total_return == pytest.approx(0.575)
    assert result.ts.tolist() == marks(0, 5).tolist()


def test_a_failed_training_leaves_its_share_in_cash():
    result = pooled(FoldBacktests(marks(0, 2), [traded([1.0, 1.0], first=0, last=2), None]))
    assert result.equity.tolist() == pytest.approx([2000.0, 2000.0, 2100.0])
    assert result.seed_equity[:, 1].tolist() == [1000.0] * 3
    assert result.trades == 1


def test_a_fold_that_failed_altogether_earns_nothing():
    result = pooled(FoldBacktests(marks(0, 2), [None, None]))
    assert result.equity.tolist() == [2000.0] * 3
    assert (result.fold_returns, result.trades) == ((0.0,), 0)


def test_what_is_held_between_folds_is_closed_at_fee_and_spread():
    costs = {"fee": 0.01, "half_spread": 0.02}
    held = traded([0.5, 0.5], first=0, last=2, **costs)
    idle = traded([0.0, 0.0, 0.0], first=2, last=5, **costs)
    result = pooled(
        FoldBacktests(marks(0, 2), [held]), FoldBacktests(marks(2, 5), [idle]), capital=1_000.0
    )
    notional = held.bars["quantity"][-1, 0] * 110.0
    assert result.equity[2] == pytest.approx(held.equity[-1] - 0.03 * notional, rel=1e-12)
    assert result.equity[-1] == result.equity[2]
    measured = result.metrics(0.05)
    assert measured.fees.value == pytest.approx(held.bars["fee_total"].sum() + 0.01 * notional)
    assert measured.slippage.value == pytest.approx(held.bars["slippage"].sum() + 0.02 * notional)
    # in the last fold nothing is sold: it is marked, as a backtest is
    alone = pooled(FoldBacktests(marks(0, 2), [held]), capital=1_000.0)
    assert alone.equity[-1] == pytest.approx(held.equity[-1], rel=1e-12)


def test_shares_are_scaled_to_the_capital_there_is():
    one = traded([1.0, 1.0], first=0, last=2, capital=10.0, fee=0.001)
    result = pooled(FoldBacktests(marks(0, 2), [one]), capital=2_000.0)
    assert result.equity == pytest.approx(200.0 * one.equity)
    assert result.metrics(0.05).fees.value == pytest.approx(200.0 * one.bars["fee_total"].sum())
    assert result.flows.turnover == pytest.approx(one.turnover)
    assert result.flows.exposure == pytest.approx(one.exposure)


def test_turnover_and_exposure_are_shares_of_all_the_equity():
    busy = traded([1.0, 1.0], first=0, last=2)
    result = pooled(FoldBacktests(marks(0, 2), [busy, None]))
    assert result.flows.turnover == pytest.approx([0.5, 0.0])
    assert result.flows.exposure == pytest.approx([0.5, 1100.0 / 2100.0])


def test_the_cost_charged_is_all_that_was_paid_over_all_that_was_traded():
    one = traded([1.0, 0.0], first=0, last=2, fee=0.0005, half_spread=0.0002)
    # fills lie 2 bp from the open, so the notional does too: 5 bp of it, and 2 bp of the open
    bought, sold = one.trades
    paid = bought.fee + sold.fee + bought.slippage + sold.slippage
    notional = bought.quantity * bought.price + sold.quantity * sold.price
    assert charged_bp([one]) == pytest.approx(1e4 * paid / notional)
    assert charged_bp([one, one]) == pytest.approx(7.0, abs=2e-3)
    assert charged_bp([traded([0.0, 0.0], first=0, last=2)]) is None


def test_other_orders_have_another_hash():
    same = [traded([1.0, 1.0], first=0, last=2), None]
    first, again = (pooled(FoldBacktests(marks(0, 2), same)) for _ in range(2))
    other = pooled(FoldBacktests(marks(0, 2), same[::-1]))
    assert first.order_hash == again.order_hash
    assert first.order_hash != other.order_hash
