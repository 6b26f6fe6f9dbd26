"""Gross to net: by hand, against an auditor's ledger, and to the last cent."""

import numpy as np
import pytest
import torch

from backtest_lab import agent_for, panel, plain, rules
from oracles import performance as oracle
from simulator_lab import market, settings, steady
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.engine.run import backtest, replay
from stormsail.evaluation.performance.attribution import COSTS, LEGS, attribution_of, joined
from stormsail.market import MarketConfig
from stormsail.market.simulator.tape import paid_rates

ACCOUNT = 1_000.0


def traded(bars, weights, rules_: MarketConfig, **changes):
    config = BacktestConfig.from_mapping(
        {"market": rules_.model_dump(), "capital": ACCOUNT * len(bars.symbols), **changes}
    )
    return replay(torch.tensor(weights, dtype=torch.float64), bars, config)


def check_sums(result, made):
    """Every bar: gross less all costs is the change of equity, by leg and in all."""
    change = np.diff(result.equity)
    assert made.net.sum(1) == pytest.approx(change, abs=1e-9)
    both = made.totals()["both"]
    assert both["gross"] == pytest.approx(both["net"] + sum(both[name] for name in COSTS), abs=1e-9)
    assert both["net"] == pytest.approx(result.equity[-1] - result.equity[0], abs=1e-9)
    assert both["fees"] + both["liquidation"] == pytest.approx(
        result.bars["fee_total"].sum(), abs=1e-9
    )
    assert both["funding"] + both["borrow"] == pytest.approx(result.bars["funding"].sum(), abs=1e-9)
    slipped = both["spread"] + both["impact"] + both["tick"] + both["delisting"]
    assert slipped == pytest.approx(result.bars["slippage"].sum(), abs=1e-9)


def test_a_long_and_a_short_trade_by_hand():
    # Prices stand still within bars. Fee 1 %, half spread 2 %, no impact, no ticks.
    # Row 1 opens at 100: buy. Row 2 opens at 110: turn short. Row 3 opens at 99: close.
    bars = market(steady([100.0, 100.0, 110.0, 99.0, 99.0]), funding={2: 0.01})
    chosen = settings(costs__taker_fee=0.01, costs__half_spread=0.02)
    weights = [[0.5], [-0.5], [0.0], [np.nan], [np.nan]]
    result = traded(bars, weights, chosen)
    first, second, third = (result.bars["traded"][row, 0] for row in range(3))
    held, short = first, first + second
    assert held > 0.0 > short
    assert third == -short
    totals = attribution_of(result, bars).totals()
    closing = held  # of the second order, this much closes the long position
    long, sold = totals["long"], totals["short"]
    assert long["gross"] == pytest.approx(held * 10.0, abs=1e-9)  # 100 to 110
    assert sold["gross"] == pytest.approx(short * (99.0 - 110.0), abs=1e-9)
    # bought at 102, sold at 110 * 0.98 = 107.8; the fee is 1 % of that
    assert long["fees"] == pytest.approx(0.01 * (held * 102.0 + closing * 107.8), abs=1e-9)
    assert long["spread"] == pytest.approx(held * 2.0 + closing * 2.2, abs=1e-9)
    # opened short at 107.8, bought back at 99 * 1.02 = 100.98
    assert sold["fees"] == pytest.approx(0.01 * -short * (107.8 + 100.98), abs=1e-9)
    assert sold["spread"] == pytest.approx(-short * (2.2 + 1.98), abs=1e-9)
    assert long["funding"] == pytest.approx(held * 110.0 * 0.01, abs=1e-9)  # it settles before
    assert sold["funding"] == 0.0
    assert all(totals["both"][name] == 0.0 for name in ("impact", "tick", "borrow", "liquidation"))
    check_sums(result, attribution_of(result, bars))


def test_exposure_by_hand():
    bars = market(steady([100.0] * 5))
    result = traded(bars, [[0.5], [-0.25], [0.0], [np.nan], [np.nan]], settings())
    made = attribution_of(result, bars)
    assert made.exposure == pytest.approx(
        np.array([[0.5, 0.0], [0.0, 0.25], [0.0, 0.0], [0.0, 0.0]]), abs=1e-12
    )
    assert made.exposures() == pytest.approx(
        {
            "gross": 0.1875,
            "net": 0.0625,
            "long": 0.125,
            "short": 0.0625,
            "largest": 0.5,
            "time": 0.5,
        },
        abs=1e-12,
    )


def test_impact_and_ticks_by_hand():
    # 10 of 100 bought with mean notional 100 * 16: participation 1000 / 1600 of a bar.
    bars = market(steady([100.0] * 4), volume=16.0)
    chosen = settings(costs__half_spread=0.01, costs__impact=0.1, filters__tick=0.7)
    result = traded(bars, [[0.5], [np.nan], [np.nan], [np.nan]], chosen)
    size = result.bars["traded"][0, 0]
    both = attribution_of(result, bars).totals()["both"]
    assert both["spread"] == pytest.approx(size * 1.0, abs=1e-9)
    pushed = 100.0 * 0.1 * (size * 100.0 / 1_600.0) ** 0.5
    assert both["impact"] == pytest.approx(size * pushed, abs=1e-9)
    price = np.ceil((101.0 + pushed) / 0.7) * 0.7
    assert both["tick"] == pytest.approx(size * (price - 101.0 - pushed), abs=1e-9)
    check_sums(result, attribution_of(result, bars))


def test_interest_is_apart_from_funding():
    bars = market({"AAA/USDT": steady([100.0, 100.0, 120.0, 120.0])})
    terms = {"AAA/USDT": {"kind": "margin", "borrow_rate": 0.876, "quote_borrow_rate": 0.438}}
    chosen = settings(leverage=2.0, instruments=terms)
    result = traded(bars, [[2.0], [-1.0], [np.nan], [np.nan]], chosen)
    made = attribution_of(result, bars)
    totals = made.totals()
    # 1000 of quote borrowed over one bar at 43.8 % a year, then base at 87.6 %
    hour = 1.0 / 8_760.0
    assert totals["long"]["borrow"] == pytest.approx(1_000.0 * 0.438 * hour, rel=1e-9)
    short = result.bars["quantity"][1, 0]
    assert totals["short"]["borrow"] == pytest.approx(-short * 120.0 * 0.876 * hour, rel=1e-9)
    assert totals["both"]["funding"] == pytest.approx(0.0, abs=1e-12)
    check_sums(result, made)


def test_a_liquidation_is_a_loss_of_price_and_a_fee():
    bars = market([(100, 100, 100, 100), (100, 100, 100, 100), (60, 61, 10, 20), (20, 20, 20, 20)])
    chosen = settings(leverage=3.0, margin__maintenance=0.01, costs__taker_fee=0.001)
    result = traded(bars, [[3.0], [np.nan], [np.nan], [np.nan]], chosen)
    assert result.flags["liquidated"].any()
    made = attribution_of(result, bars)
    both = made.totals()["both"]
    exit_ = next(trade for trade in result.trades if trade.reason == "liquidation")
    assert both["liquidation"] == pytest.approx(exit_.fee, abs=1e-9)
    assert both["liquidation"] > 0.0
    assert both["fees"] == pytest.approx(result.trades[0].fee, abs=1e-9)
    held = result.trades[0].quantity
    assert both["gross"] == pytest.approx(held * (exit_.price - 100.0), abs=1e-9)
    check_sums(result, made)


def ledger_of(result, bars, column):
    """Return what an auditor notes of one account, with prices of the panel alone."""
    symbol = result.symbols[column]
    rates = paid_rates(bars, result.market).numpy()
    first = int(np.searchsorted(bars.ts.numpy(), result.ts[0]))
    window = result.market.costs.impact_window
    notional = (bars.close * bars.volume).double().numpy()[:, column]
    held, rows = 0.0, []
    for step in range(len(result.returns)):
        row = first + step
        fills = [t for t in result.trades if t.ts_ms == bars.ts[row] and t.symbol == symbol]
        order = next((t for t in fills if t.reason not in ("liquidation", "delisting")), None)
        gone = next((t for t in fills if t.reason == "liquidation"), None)
        signed = 0.0
        if order is not None:
            signed = order.quantity if order.side == "buy" else -order.quantity
        rows.append(
            {
                "q": held,
                "u": signed,
                "price": 0.0 if order is None else order.price,
                "fee": 0.0 if order is None else order.fee,
                "open": float(bars.open[row, column]),
                "before": float(bars.close[row - 1, column]),
                "close": float(bars.close[row, column]) if gone is None else gone.price,
                "exit_fee": 0.0 if gone is None else gone.fee,
                "mean": float(np.mean(notional[max(0, row - window) : row])),
                "rate": float(rates[row, column]),
                "interest": 0.0,
            }
        )
        held = float(result.bars["quantity"][step, column])
    return rows


def check_ledger(result, bars, totals):
    """Every item of every leg is what the auditor's ledgers of all accounts add up to."""
    expected = {leg: {} for leg in LEGS}
    for column in range(len(result.symbols)):
        own = oracle.attribution(
            ledger_of(result, bars, column),
            half_spread=result.market.costs.half_spread,
            impact=result.market.costs.impact,
        )
        for leg in LEGS:
            for item, money in own[leg].items():
                expected[leg][item] = expected[leg].get(item, 0.0) + money
    for leg in LEGS:
        for item, money in expected[leg].items():
            assert totals[leg][item] == pytest.approx(money, abs=1e-6), (leg, item)


@pytest.mark.parametrize("seed", range(4))
def test_an_agents_costs_are_those_of_an_auditors_ledger(seed):
    chosen = rules(costs__impact=0.05)
    bars = panel(160, symbols=3, seed=seed)
    agent = agent_for(bars, chosen, seed=seed)
    result = backtest(agent, bars, plain())
    made = attribution_of(result, bars)
    check_sums(result, made)
    totals = made.totals()
    check_ledger(result, bars, totals)
    assert totals["long"]["gross"] != 0.0
    assert totals["short"]["gross"] != 0.0
    assert min(totals["both"][name] for name in ("fees", "spread", "impact", "tick")) > 0.0


def test_cash_that_moves_between_accounts_is_no_gain():
    bars = panel(120, symbols=3)
    weights = np.where(np.arange(120)[:, None] % 7 == 0, [[0.9, -0.4, 0.2]], np.nan)
    result = traded(bars, weights, rules(), pool_bars=5)
    assert np.abs(result.bars["transfer"]).max() > 0.0
    made = attribution_of(result, bars)
    check_sums(result, made)
    check_ledger(result, bars, made.totals())


def test_spans_are_joined_in_order():
    bars = panel(90)
    result = backtest(agent_for(bars), bars, plain())
    made = attribution_of(result, bars)
    twice = joined([made, made])
    assert twice.totals()["both"]["fees"] == pytest.approx(2.0 * made.totals()["both"]["fees"])
