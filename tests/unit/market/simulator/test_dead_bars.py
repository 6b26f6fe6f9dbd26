"""Frozen bars, symbols that end, and starts without a bar to trade, in numbers worked by hand."""

from dataclasses import replace
from decimal import Decimal

import pytest
import torch

from simulator_lab import SYMBOL, at, draws, market, play, settings, simulator, steady
from stormsail.core.errors import DataError
from stormsail.evaluation.crosscheck.reference import reference_bars
from stormsail.evaluation.crosscheck.reference import replay as refer
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.engine.run import replay
from stormsail.market.simulator.config import MarketConfig
from stormsail.market.simulator.tape import delisting_rows, may_trade

TWO_HOURS = {"delisting.silent_days": 2.0 / 24.0}
DEAD = [1e9] * 4 + [0.0] * 6


def column(rows, name):
    return [row[name] for row in rows]


# --- frozen bars


def test_no_order_fills_on_a_bar_without_volume_though_impact_is_off():
    panel = market(steady([100.0] * 5), volume=[1.0, 0.0, 0.0, 1.0, 1.0])
    rows = play(panel, settings(episode_bars=3), [1.0, 1.0, 1.0])[2]
    assert column(rows, "traded") == [0.0, 0.0, 100.0]
    assert column(rows, "blocked") == [True, True, False]


def test_a_source_without_volumes_can_be_traded_by_decision():
    panel = market(steady([100.0] * 5), volume=0.0)
    rows = play(panel, settings(episode_bars=3, trade_without_volume=True), [1.0, 1.0, 1.0])[2]
    assert column(rows, "traded") == [100.0, 0.0, 0.0]


# --- delisting


def test_a_symbol_ends_after_its_last_traded_bar_if_the_data_go_on_for_long_enough():
    bars = {"AAA/USDT:USDT": steady([100.0] * 10), "BBB/USDT:USDT": steady([100.0] * 10)}
    panel = market(bars)
    panel.volume[4:, 0] = 0.0  # the last traded row is 3; the last row is 9, six hours later
    for hours, rows in ((6.0, [4, 10]), (6.1, [10, 10])):
        config = settings(**{"delisting.silent_days": hours / 24.0})
        assert delisting_rows(panel, config).tolist() == rows
    panel.tradable[9, 1] = False  # a missing bar is no trade either
    assert delisting_rows(panel, settings(**{"delisting.silent_days": 1.0 / 24.0})).tolist() == [
        4,
        9,
    ]
    assert delisting_rows(panel, MarketConfig()).tolist() == [10, 10]


@pytest.mark.parametrize(("weight", "paid", "left"), [(0.5, 95.0, 9_750.0), (-0.5, 105.0, 9_750.0)])
def test_a_position_is_closed_at_the_last_traded_price_less_five_percent(weight, paid, left):
    """50 units at 100: 5 % of 5,000 is 250, for a long at 95 and for a short at 105; no fee."""
    prices = [100.0] * 4 + [140.0] * 6  # the frozen bars show another price: nobody traded there
    config = settings(episode_bars=8, **{"costs.taker_fee": 0.0, **TWO_HOURS})
    rows = play(market(steady(prices), volume=DEAD), config, [weight] * 8)[2]
    assert column(rows, "delisted")[:4] == [False, False, False, True]
    ended = rows[3]
    assert (ended["quantity"], ended["entry_price"], ended["equity"]) == (0.0, 0.0, left)
    assert (ended["slippage"], ended["fee_total"], ended["traded"]) == (250.0, 0.0, 0.0)
    assert (ended["terminated"], ended["truncated"], ended["liquidated"]) == (True, False, False)
    assert ended["signal_pos_next"] == 0.0
    assert abs(paid - 100.0) * 50.0 == ended["slippage"]


def test_spread_and_impact_of_the_last_traded_bars_are_paid_where_they_are_more():
    """The last traded bar is worth 20,000: 0.01 + 0.4 sqrt(5,000 / 20,000) = 0.21 of 5,000."""
    volume = [1e9, 1e9, 1e9, 200.0, 0.0, 0.0, 0.0]
    panel = market(steady([100.0] * 7), volume=volume)
    costs = {"costs.half_spread": 0.01, "costs.impact": 0.4, "costs.impact_window": 1}
    config = settings(episode_bars=5, **costs, **TWO_HOURS)
    sim = simulator(panel, config)
    state = at(sim)._replace(row=torch.tensor([3]), quantity=torch.tensor([50.0]).double())
    state = state._replace(cash=torch.tensor([5_000.0]).double())
    hold = torch.tensor([torch.nan], dtype=torch.float64)
    after, step = sim.transition(state, hold, draws(sim))
    assert after.cash.item() == pytest.approx(5_000.0 + 50.0 * 100.0 * (1.0 - 0.21), rel=1e-14)
    assert step.info.slippage.item() == pytest.approx(1_050.0, rel=1e-14)
    full = config.replace(**{"costs.impact": 9.0})  # 0.01 + 9 / 2 is more than all there is
    after, _ = simulator(panel, full).transition(
        state._replace(impact=torch.tensor([9.0]).double()), hold, draws(sim)
    )
    assert after.cash.item() == 5_000.0


def test_the_loss_is_a_setting():
    config = settings(episode_bars=8, **{"delisting.loss": 0.3, **TWO_HOURS})
    rows = play(market(steady([100.0] * 10), volume=DEAD), config, [1.0] * 4)[2]
    assert rows[3]["equity"] == pytest.approx(7_000.0, rel=1e-15)


def test_a_flat_account_loses_nothing_and_its_episode_ends_as_well():
    config = settings(episode_bars=8, **TWO_HOURS)
    rows = play(market(steady([100.0] * 10), volume=DEAD), config, [0.0] * 4)[2]
    assert column(rows, "terminated") == [False, False, False, True]
    assert rows[3]["equity"] == 10_000.0


def test_a_liquidation_at_the_open_comes_before_the_delisting():
    config = settings(leverage=5.0, episode_bars=8, **{"margin.maintenance": 0.1, **TWO_HOURS})
    panel = market(steady([100.0] * 10), volume=DEAD, funding={4: 0.15})
    rows = play(panel, config, [5.0] * 4)[2]
    # 500 at 100 with 40,000 borrowed; funding of 7,500 leaves 2,500, and 5,000 are needed.
    assert (rows[3]["liquidated"], rows[3]["delisted"]) == (True, True)
    assert rows[3]["equity"] == pytest.approx(2_500.0 - 0.005 * 50_000.0, rel=1e-13)


def test_the_reference_closes_a_delisted_position_at_the_same_price():
    panel = market(steady([100.0, 100.0, 110.0, 120.0] + [77.0] * 6), volume=[30.0] * 4 + [0.0] * 6)
    costs = {"costs.taker_fee": 0.001, "costs.half_spread": 0.002, "costs.impact": 0.3}
    config = settings(
        leverage=2.0, episode_bars=8, **costs, **{"costs.impact_window": 2}, **TWO_HOURS
    )
    for weight in (2.0, -1.0):
        rows = play(panel, config, [weight] * 4)[2]
        bars = reference_bars(panel, SYMBOL, impact_window=2, silent_days=2.0 / 24.0)
        records = refer(config, bars, [Decimal(weight)] * 9, symbol=SYMBOL)
        assert len(records) == 4
        assert records[-1].terminated
        assert records[-1].delisted
        assert not records[-1].liquidated
        for row, record in zip(rows, records, strict=True):
            for name in ("equity", "cash", "slippage", "fee_total"):
                assert row[name] == pytest.approx(float(getattr(record, name)), rel=1e-12)


def test_alternatives_know_that_the_symbol_ends():
    panel = market(steady([100.0] * 10), volume=DEAD)
    sim = simulator(panel, settings(episode_bars=8, **TWO_HOURS))
    state = at(sim, row=3)
    offered = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    assert sim.alternatives(state, offered).terminated.tolist() == [[True, True, True]]
    assert not sim.alternatives(at(sim, row=2), offered).terminated.any()


def test_a_backtest_books_the_same_loss_as_a_trade_and_goes_on_in_cash():
    panel = market(steady([100.0] * 10), volume=DEAD)
    config = BacktestConfig(market=settings(**TWO_HOURS))
    result = replay(torch.ones(10, 1), panel, config)
    assert result.equity[-1] == pytest.approx(9_500.0, rel=1e-15)
    *_, last = result.trades
    assert (last.reason, last.side, last.quantity, last.price) == ("delisting", "sell", 100.0, 95.0)
    assert (last.fee, last.slippage) == (0.0, 500.0)
    assert result.delisted_symbols == (SYMBOL,)
    assert result.stopped_symbols == ()
    assert result.flags["blocked"][:, 0].tolist() == [False] * 9
    assert result.round_trips.tolist() == [-500.0]


# --- starts


def test_episodes_start_only_where_a_bar_of_theirs_can_be_traded():
    """Of rows 1 to 6, an episode of 3 bars after row 3 holds rows 4 to 6, all of them frozen."""
    panel = market(steady([100.0] * 10), volume=DEAD)
    config = settings(episode_bars=3)
    sim = simulator(panel, config, batch=512)
    state, _ = sim.reset(torch.Generator().manual_seed(0))
    assert sorted(set(state.row.tolist())) == [1, 2]
    assert may_trade(panel, config)[:, 0].tolist() == [True] * 4 + [False] * 6


def test_a_dead_symbol_beside_a_living_one_takes_no_start():
    bars = {"AAA/USDT:USDT": steady([100.0] * 60), "BBB/USDT:USDT": steady([100.0] * 60)}
    panel = market(bars)
    panel.volume[20:, 0] = 0.0
    sim = simulator(panel, settings(episode_bars=5), batch=4096)
    state, _ = sim.reset(torch.Generator().manual_seed(1))
    dead = state.symbol == 0
    assert state.row[dead].max().item() == 18  # fills at row 19, the last that was traded
    assert state.row[~dead].max().item() == 54
    assert dead.double().mean().item() == pytest.approx(18 / (18 + 54), abs=0.03)


def test_a_market_in_which_nothing_can_be_traded_is_refused_in_numbers():
    panel = market(steady([100.0] * 10), volume=0.0)
    with pytest.raises(DataError) as caught:
        simulator(panel, settings(episode_bars=3))
    text = str(caught.value)
    assert "an episode of 3 bars must hold one in which an order can fill" in text
    assert "none in 6 episodes that fit; 10 of 10 bars have no volume" in text
    assert "task.market.trade_without_volume" in text


def test_hours_that_are_never_traded_take_no_start():
    panel = market(steady([100.0] * 40))
    config = settings(episode_bars=2, **{"no_trade.daily": ("04:00-20:00",)})
    state, _ = simulator(panel, config, batch=2048).reset(torch.Generator().manual_seed(2))
    # fills from 04:00 to 19:00 are barred: an episode that starts at row 3 fills at rows 4 and 5
    assert not any(3 <= row <= 17 or row >= 27 for row in state.row.tolist())
    assert {1, 2, 18, 26} <= set(state.row.tolist())


# --- mark prices


def marked(panel, rows):
    """Return the panel with mark prices (open, high, low) by row; None leaves one out."""
    rows = [*rows, *[None] * (len(panel.ts) - len(rows))]
    prices = [[torch.nan] * 3 if row is None else list(row) for row in rows]
    return replace(panel, mark=torch.tensor(prices, dtype=torch.float64)[:, None])


SPIKE = [*steady([100.0]), (100.0, 130.0, 100.0, 100.0), *steady([100.0, 100.0])]


def test_a_false_wick_does_not_liquidate_where_the_mark_price_did_not_follow():
    config = settings(leverage=4.0, episode_bars=2, **{"margin.maintenance": 0.05})
    plain = market(SPIKE)
    # Short 400 at 100, cash 50,000: gone at 50,000 / (400 * 1.05) = 119.05, which a high of 130 is.
    assert play(plain, config, [-4.0])[2][0]["liquidated"]
    calm = marked(plain, [(100.0, 100.0, 100.0), (100.0, 101.0, 99.0), (100.0, 100.0, 100.0)])
    row = play(calm, config, [-4.0])[2][0]
    assert (row["liquidated"], row["equity"]) == (False, 10_000.0)
    unknown = marked(plain, [None, None, None])
    assert play(unknown, config, [-4.0])[2][0]["liquidated"]


def test_a_mark_price_liquidates_where_the_trades_did_not():
    config = settings(leverage=4.0, episode_bars=2, **{"margin.maintenance": 0.05})
    panel = marked(market(steady([100.0] * 4)), [None, (100.0, 125.0, 100.0), None])
    row = play(panel, config, [-4.0])[2][0]
    price = 50_000.0 / (400.0 * 1.05)
    assert row["liquidated"]
    fee = 0.005 * 400.0 * price
    assert row["equity"] == pytest.approx(50_000.0 - 400.0 * price - fee, rel=1e-13)


def test_a_gap_of_the_mark_price_closes_at_the_worse_of_both_opens():
    config = settings(leverage=4.0, episode_bars=2, **{"margin.maintenance": 0.05})
    panel = marked(market(steady([100.0] * 4)), [None, None, (79.0, 80.0, 79.0)])
    rows = play(panel, config, [4.0, 4.0])[2]
    # 400 bought with 30,000 borrowed; at 79 that leaves 1,600, and 1,580 are needed.
    assert (rows[1]["liquidated"], rows[1]["equity"]) == (False, 10_000.0)
    deeper = marked(market(steady([100.0] * 4)), [None, None, (78.0, 80.0, 78.0)])
    rows = play(deeper, config, [4.0, 4.0])[2]
    # 31,200 less 30,000 is 1,200, and 1,560 are needed: gone, at 78 and not at the traded 100.
    assert rows[1]["liquidated"]
    assert rows[1]["equity"] == pytest.approx(1_200.0 - 0.005 * 400.0 * 78.0, rel=1e-12)


def test_the_reference_watches_the_same_mark_price():
    config = settings(leverage=4.0, episode_bars=2, **{"margin.maintenance": 0.05})
    for mark in ((78.0, 80.0, 78.0), (100.0, 101.0, 70.0), (95.0, 101.0, 90.0)):
        panel = marked(market(steady([100.0, 100.0, 90.0, 90.0])), [None, None, mark])
        rows = play(panel, config, [4.0, 4.0])[2]
        bars = reference_bars(panel, SYMBOL, impact_window=24)
        for row, record in zip(
            rows, refer(config, bars, [Decimal(4)] * 3, symbol=SYMBOL), strict=True
        ):
            assert row["liquidated"] == record.liquidated
            assert row["equity"] == pytest.approx(float(record.equity), rel=1e-12)
