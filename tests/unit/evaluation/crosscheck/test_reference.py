"""The reference ledger, rule by rule, on numbers worked out by hand."""

import ast
import math
from decimal import Decimal, localcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from stormsail.core.errors import InvariantError, RangeError, ShapeError
from stormsail.evaluation.crosscheck import reference
from stormsail.evaluation.crosscheck.reference import (
    ReferenceBar,
    ReferenceLedger,
    reference_bars,
    replay,
    trailing_notional,
)
from stormsail.evaluation.crosscheck.reference_account import EXACT, RATIO
from stormsail.evaluation.crosscheck.reference_gate import NoTradeTimes, Reason
from stormsail.functional import risk_gate
from stormsail.market import Funding, Interval, Panel
from stormsail.market.bars import from_columns
from stormsail.market.simulator.config import MarketConfig, NoTrade

HOUR = 3_600_000
MINUTE = 60_000
FREE = {"taker_fee": 0.0, "half_spread": 0.0, "impact": 0.0}


def market(**changes):
    """A market without costs and with 1,000 to trade; `costs` changes single ones."""
    costs = FREE | changes.pop("costs", {})
    return MarketConfig(**({"initial_equity": 1000.0, "costs": costs} | changes))


def bar(opened, *, close=None, high=None, low=None, hour=1, ts=None, **rest):
    """A bar that stands still at its open, unless told otherwise."""
    opened = Decimal(opened)
    close = opened if close is None else Decimal(close)
    high = max(opened, close) if high is None else Decimal(high)
    low = min(opened, close) if low is None else Decimal(low)
    return ReferenceBar(hour * HOUR if ts is None else ts, opened, high, low, close, **rest)


def start(config, *, close="100", **rest):
    return ReferenceLedger(
        config, symbol="BTC/USDT", first_ts_ms=0, first_close=Decimal(close), **rest
    )


def step(ledger, weight, at):
    record = ledger.step(at, None if weight is None else Decimal(weight))
    ledger.check_identity()
    return record


def leveraged(weight, **changes):
    """A ledger that holds `weight` times its 1,000, bought or sold at 100 without costs."""
    changes = {"limits": {"max_leverage": 4.0}, "margin": {"maintenance": 0.2}} | changes
    ledger = start(market(**changes))
    step(ledger, weight, bar(100))
    return ledger


# Orders


def test_an_order_is_decided_before_the_bar_and_fills_at_its_open():
    record = step(start(market(), close="100"), "1", bar(80, close=90))

    # 1,000 / 80 = 12.5 units at the open, worth 1,125 at the close.
    assert (record.price, record.traded, record.cash) == (80, Decimal("12.5"), 0)
    assert (record.equity, record.weight, record.turnover) == (1125, 1, 1)
    assert record.reward_raw_fraction == pytest.approx(math.log(1.125), rel=1e-15)


def test_spread_and_fee_are_reserved_and_paid():
    config = market(initial_equity=1020.1, costs={"taker_fee": 0.01, "half_spread": 0.01})
    record = step(start(config), "1", bar(100))

    # c = .01 + .01 * 1.01 = .0201; u = 1020.1 / 1.0201 / 100 = 10; price 101; 1010 + 10.10 paid.
    assert (record.traded, record.price) == (10, 101)
    assert (record.fee_total, record.slippage) == (Decimal("10.1"), 10)
    assert (record.cash, record.equity) == (0, 1000)
    assert record.reward_costs_fraction == pytest.approx(20.1 / 1020.1, rel=1e-15)


def test_a_sale_pays_spread_and_fee_the_other_way_round():
    config = market(initial_equity=1019.9, costs={"taker_fee": 0.01, "half_spread": 0.01})
    record = step(start(config), "-1", bar(100))

    # c = .01 + .01 * (1 - .01) = .0199; u = 1019.9 / (1 + (-1)(-1) .0199) / 100 = 10; price 99;
    # cash 1019.9 + 990 - 9.9 = 2000; equity 2000 - 1000 = 1000.
    assert (record.traded, record.price, record.fee_total) == (-10, 99, Decimal("9.9"))
    assert (record.cash, record.equity, record.weight) == (2000, 1000, -1)


def test_impact_is_the_root_of_the_share_of_the_trailing_notional():
    config = market(costs={"impact": 0.1}, filters={"lot": 9.0})
    record = step(start(config), "1", bar(100, trailing_notional=Decimal(90_000)))

    # Reserved: .1 sqrt(1000 / 90000) = .01054, so 9.896 units fit, one lot of 9.
    # Paid: .1 sqrt(900 / 90000) = .01, price 101.
    assert (record.traded, record.price, record.cash) == (9, 101, 91)
    assert (record.slippage, record.turnover) == (9, Decimal("0.9"))


def test_the_episode_multipliers_scale_the_costs():
    config = market(
        initial_equity=1020.1,
        costs={"taker_fee": 0.02, "half_spread": 0.0025, "impact": 0.2},
    )
    ledger = start(
        config,
        fee_multiplier=Decimal("0.5"),
        half_spread_multiplier=Decimal(4),
        impact_multiplier=Decimal(0),
    )
    record = step(ledger, "1", bar(100))

    assert (record.traded, record.price, record.cash) == (10, 101, 0)


def test_prices_round_to_the_tick_against_us():
    config = market(costs={"half_spread": 0.001}, filters={"tick": 0.5})
    bought = step(start(config), "0.5", bar(100))
    sold = step(start(config), "-0.5", bar(100))

    # 100.1 rounds up to 100.5; 99.9 rounds down to 99.5.
    assert (bought.price, sold.price) == (Decimal("100.5"), Decimal("99.5"))


@pytest.mark.parametrize("side", ["0.5", "-0.5"])
@pytest.mark.parametrize("price", [100.1, 0.3, 1234.7, 4.35])
def test_a_stored_price_on_the_grid_stays_there(price, side):
    record = step(start(market(filters={"tick": 0.05})), side, bar(Decimal.from_float(price)))

    # The double next to 100.1 is 100.0999...943; the one next to 0.3 lies below it, and so on.
    assert record.price == Decimal(str(price))


def test_quantities_round_down_to_the_lot():
    bought = step(start(market(filters={"lot": 0.4})), "1", bar(130))
    sold = step(start(market(filters={"lot": 0.4})), "-1", bar(130))

    # 1000 / 130 = 7.69: 19 lots of .4, towards zero on either side.
    assert (bought.quantity, sold.quantity) == (Decimal("7.6"), Decimal("-7.6"))
    assert (bought.cash, sold.cash) == (12, 1988)


def test_a_quotient_a_few_digits_below_a_lot_counts_as_the_lot():
    # Decimal(0.1) is 0.1000000000000000055...: 9,999.99999999999945 lots.
    record = step(start(market(filters={"lot": 1.0})), "1", bar(Decimal.from_float(0.1)))

    assert record.quantity == 10_000


def test_an_order_below_the_least_notional_is_not_sent():
    config = market(filters={"min_notional": 500.0})

    assert step(start(config), "0.5", bar(100)).traded == 5
    below = step(start(config), "0.499", bar(100))
    assert (below.traded, below.price, below.blocked) == (0, None, False)


def test_a_symbol_has_its_own_filters():
    config = market(filters={"lot": 4.0}, symbol_filters={"BTC/USDT": {"lot": 3.0}})
    other = ReferenceLedger(config, symbol="ETH/USDT", first_ts_ms=0, first_close=Decimal(100))

    assert step(start(config), "1", bar(100)).quantity == 9
    assert step(other, "1", bar(100)).quantity == 8


def test_small_changes_wait_but_closing_does_not():
    ledger = start(market(min_rebalance=0.1))
    assert step(ledger, "0.05", bar(100)).traded == 0
    assert step(ledger, "0.1", bar(100)).traded == 1
    assert step(ledger, "0.15", bar(100)).traded == 0
    assert step(ledger, "0", bar(100)).traded == -1


def test_an_order_whose_costs_exceed_it_is_not_sent():
    config = market(costs={"impact": 10.0})
    ledger = start(config)
    step(ledger, "-1", bar(100, trailing_notional=Decimal("1e12")))
    record = step(ledger, "-0.5", bar(100, trailing_notional=Decimal(100)))

    # Buying back half of 1,000 against 100 traded: s0 = 10 sqrt(5) = 22; 1 - .5 * 22 < 0.
    assert (record.traded, record.price) == (0, None)


# Positions


def test_a_weight_of_zero_stays_flat():
    ledger = start(MarketConfig())
    for price in (80, 120, 50):
        record = step(ledger, "0", bar(price, trailing_notional=Decimal(1)))
        assert (record.equity, record.traded, record.reward_raw_fraction) == (10_000, 0, 0.0)


def test_repeating_a_weight_does_not_add_to_the_position():
    config = market(initial_equity=1020.1, costs={"taker_fee": 0.01, "half_spread": 0.01})
    ledger = start(config)
    first = step(ledger, "1", bar(100))
    again = [step(ledger, "1", bar(100)) for _ in range(5)]

    assert [record.traded for record in again] == [0] * 5
    assert again[-1].cash == first.cash == 0


def test_a_partial_resize_pays_for_the_difference_only():
    ledger = start(market(initial_equity=2009.9, costs={"taker_fee": 0.01}))
    bought = step(ledger, "1", bar(100))
    assert (bought.quantity, bought.fee_total, bought.cash) == (Decimal("19.9"), Decimal("19.9"), 0)

    record = step(ledger, "0.5", bar(100))

    # g = 995 - 1990; D0 = 995 / (1 - .5 * .01) = 1000: sells 10 and pays 10, and holds
    # 990 of 1980. Closing and opening again would have paid 19.9 + 9.8.
    assert (record.traded, record.fee_total) == (-10, 10)
    assert (record.cash, record.equity, record.weight) == (990, 1980, Decimal("0.5"))
    assert record.entry_price == 100


def test_adding_moves_the_entry_price_and_reducing_does_not():
    ledger = start(market())
    assert step(ledger, "0.5", bar(100)).entry_price == 100

    # 5 units and 500 cash are 1125 at 125; weight 1 lacks 500, 4 units.
    added = step(ledger, "1", bar(125))
    assert (added.traded, added.quantity) == (4, 9)
    assert added.entry_price == RATIO.divide(Decimal(5 * 100 + 4 * 125), Decimal(9))

    reduced = step(ledger, "0.2", bar(150))
    assert reduced.traded == Decimal("-7.2")
    assert reduced.entry_price == added.entry_price
    assert step(ledger, "0", bar(150)).entry_price == 0


def test_turning_through_zero_starts_at_the_new_price():
    ledger = start(market())
    step(ledger, "1", bar(100))
    record = step(ledger, "-1", bar(110))

    # 10 units are 1,100; -1 lacks 2,200, which is 20 units.
    assert (record.traded, record.quantity, record.entry_price) == (-20, -10, 110)
    assert (record.cash, record.equity, record.turnover) == (2200, 1100, 2)


def test_closing_sells_exactly_what_is_held():
    ledger = start(market(costs={"taker_fee": 0.0005, "half_spread": 0.0002}))
    bought = step(ledger, "1", bar("33.3"))
    closed = step(ledger, "0", bar("44.4"))

    assert closed.traded == -bought.traded
    assert (closed.quantity, closed.equity) == (0, closed.cash)


# Funding


@pytest.mark.parametrize(
    ("weight", "rate", "paid"),
    [("1", "0.001", "1.1"), ("-1", "0.001", "-1.1"), ("1", "-0.002", "-2.2"), ("0", "0.001", "0")],
)
def test_longs_pay_positive_rates_and_shorts_receive_them(weight, rate, paid):
    ledger = start(market())
    before = step(ledger, weight, bar(100))
    record = step(ledger, None, bar(110, funding_rate=Decimal(rate)))

    # 10 units at the open of 110, times the rate.
    assert record.funding == Decimal(paid)
    assert record.cash == before.cash - Decimal(paid)


def test_funding_is_due_on_the_position_before_the_fill():
    ledger = start(market())
    opening = step(ledger, "1", bar(100, funding_rate=Decimal("0.01")))
    closing = step(ledger, "0", bar(100, funding_rate=Decimal("0.01")))

    assert (opening.funding, opening.quantity) == (0, 10)
    assert (closing.funding, closing.equity) == (10, 990)


def test_the_order_is_sized_on_what_funding_leaves():
    ledger = start(market())
    step(ledger, "0.5", bar(100))
    record = step(ledger, "1", bar(100, funding_rate=Decimal("0.2")))

    # 5 units pay 100; of the 900 left, 500 are invested.
    assert (record.traded, record.cash) == (4, 0)


def test_funding_can_be_switched_off():
    ledger = start(market(funding=False))
    step(ledger, "1", bar(100))
    assert step(ledger, None, bar(100, funding_rate=Decimal("0.01"))).funding == 0


# Liquidation


def test_a_gap_liquidates_at_the_open_and_may_leave_less_than_nothing():
    ledger = leveraged("4", margin={"maintenance": 0.2, "liquidation_fee": 0.01})
    record = step(ledger, "4", bar(70, high=200, close=150))

    # 40 units on 3,000 of debt: 2,800 - 3,000 = -200, and 1 % of 2,800 as fee.
    assert (record.liquidated, record.liquidation_price, record.quantity) == (True, 70, 0)
    assert (record.fee_total, record.cash, record.equity) == (28, -228, -228)
    assert (record.traded, record.price, record.turnover, record.slippage) == (0, None, 0, 0)
    assert (record.terminated, record.truncated, record.signal_pos_next) == (True, False, 0)
    # Both sides of the ratio are at least the floor of 50.
    assert record.reward_raw_fraction == pytest.approx(math.log(50 / 1000), rel=1e-15)


def test_the_open_that_just_meets_the_margin_liquidates():
    # -3000 + 40 x = .2 * 40 x at x = 93.75.
    assert step(leveraged("4"), None, bar("93.75", close=100)).liquidation_price == Decimal("93.75")
    assert not step(leveraged("4"), None, bar("93.76")).liquidated


def test_a_long_is_liquidated_inside_the_bar_where_its_margin_ends():
    ledger = leveraged("4", margin={"maintenance": 0.2, "liquidation_fee": 0.01})
    record = step(ledger, None, bar(100, low=60, close=120))

    # 40 * 93.75 = 3750; 3750 - 3000 - 37.5 = 712.5; the recovery to 120 comes too late.
    assert (record.liquidation_price, record.fee_total) == (Decimal("93.75"), Decimal("37.5"))
    assert (record.equity, record.terminated) == (Decimal("712.5"), False)
    assert not step(leveraged("4"), None, bar(100, low="93.76", close=94)).liquidated


def test_a_short_is_liquidated_inside_the_bar_where_its_margin_ends():
    margin = {"maintenance": 0.25, "liquidation_fee": 0.01}
    changes = {"limits": {"max_leverage": 2.0}, "margin": margin, "costs": {"taker_fee": 0.0}}
    record = step(leveraged("-2", **changes), None, bar(100, high=150, close=90))

    # Cash 3,000 against 20 units: 3000 - 20 x = .25 * 20 x at x = 120; 600 - 24 are left.
    assert (record.liquidation_price, record.fee_total) == (120, 24)
    assert (record.equity, record.quantity, record.entry_price) == (576, 0, 0)
    assert not step(leveraged("-2", **changes), None, bar(100, high="119.99")).liquidated


def test_a_liquidation_pays_the_taker_fee_beside_its_own():
    config = market(
        initial_equity=1040.0,
        costs={"taker_fee": 0.01},
        limits={"max_leverage": 4.0},
        margin={"maintenance": 0.2, "liquidation_fee": 0.02},
    )
    ledger = start(config)
    bought = step(ledger, "4", bar(100))
    assert (bought.quantity, bought.cash) == (40, -3000)
    assert step(ledger, None, bar(100, low=90)).fee_total == Decimal("112.5")  # 3 % of 3,750


def test_a_position_can_be_opened_and_lost_in_one_bar():
    config = market(limits={"max_leverage": 4.0}, margin={"maintenance": 0.2})
    record = step(start(config), "4", bar(100, low=90))

    assert (record.traded, record.price, record.turnover) == (40, 100, 4)
    assert (record.quantity, record.liquidation_price) == (0, Decimal("93.75"))
    assert (record.signal_pos_next, record.weight) == (4, 0)
    assert record.fee_total == Decimal("18.75")  # half a percent of 3,750


@pytest.mark.parametrize(
    ("weight", "opened", "notional", "quantity"),
    [
        # Short 20 at 100, now 800 on 2,200. Reserved .1 sqrt(600 / 37.5) = .4, so the order would
        # be 600 / (1 - 2 * .4) = 3,000 and leave a long position; it is cut to the 20 held.
        ("-2", "110", "37.5", -20),
        # Long 20 at 100, now 600 on 1,600; 400 / (1 - 2 * .4) = 2,000 is more than the 1,600 held.
        ("2", "80", "25", 20),
    ],
)
def test_reducing_never_turns_a_position_whatever_it_costs(weight, opened, notional, quantity):
    ledger = start(market(costs={"impact": 0.1}, limits={"max_leverage": 2.0}))
    opening = step(ledger, weight, bar(100, trailing_notional=Decimal("1e40")))
    at = bar(opened, high=150, low=50, trailing_notional=Decimal(notional))
    record = step(ledger, weight, at)

    assert opening.quantity == pytest.approx(Decimal(quantity), rel=Decimal("1e-15"))
    assert (record.traded, record.quantity, record.blocked) == (-opening.quantity, 0, False)


def test_an_account_trades_on_after_a_liquidation():
    ledger = leveraged("4", margin={"maintenance": 0.2, "liquidation_fee": 0.01})
    step(ledger, None, bar(100, low=90, close=95))
    record = step(ledger, "1", bar(95))

    assert (record.traded, record.cash) == (Decimal("7.5"), 0)  # 712.5 / 95


def test_an_untradable_bar_still_charges_funding_and_liquidates():
    still = bar(100, tradable=False, funding_rate=Decimal("0.01"), low=90)
    record = step(leveraged("4"), "0", still)

    # -3040 + 40 x = 8 x at x = 95.
    assert (record.funding, record.blocked, record.liquidation_price) == (40, True, 95)


# Gate


def test_reasons_are_numbered_as_in_the_gate():
    assert {reason.name: reason.value for reason in Reason} == {
        reason.name: reason.value for reason in risk_gate.Reason
    }


@pytest.mark.parametrize("weight", [None, "NaN", "Infinity", "-Infinity"])
def test_a_weight_that_is_no_number_keeps_the_position(weight):
    ledger = start(market())
    step(ledger, "0.5", bar(100))
    record = step(ledger, weight, bar(130))

    assert (record.quantity, record.traded, record.blocked) == (5, 0, False)
    assert record.reason is Reason.NONFINITE


def test_a_held_weight_beyond_the_leverage_is_cut_even_without_a_proposal():
    ledger = start(market(limits={"max_leverage": 2.0}))
    step(ledger, "2", bar(100, close=80))
    record = step(ledger, None, bar(80))

    # 20 units, 1,000 of debt: 1,600 of 600 is 2.67. Back to 2: 1,200 of 600, sells 5.
    assert (record.traded, record.weight, record.reason) == (-5, 2, Reason.NONFINITE)


def test_leverage_and_position_are_capped():
    at = market(limits={"max_leverage": 2.0, "max_position": 600.0})
    assert step(start(at), "-0.5", bar(100)).reason is Reason.NONE
    capped = step(start(at), "-0.7", bar(100))
    assert (capped.quantity, capped.reason) == (-6, Reason.POSITION)
    assert step(start(market()), "3", bar(100)).reason is Reason.LEVERAGE
    assert step(start(market()), "3", bar(100)).quantity == 10


def test_a_daily_loss_allows_only_reductions_until_midnight():
    ledger = start(market(limits={"max_daily_loss": 0.1}))
    step(ledger, "0.5", bar(100, close=80, hour=1))  # 900: exactly a tenth is lost
    more = step(ledger, "1", bar(80, hour=2))
    assert (more.traded, more.reason) == (0, Reason.DAILY_LOSS)
    less = step(ledger, "0.2", bar(80, hour=3))
    assert (less.traded, less.reason) == (Decimal("-2.75"), Reason.NONE)  # 180 of 400 stay
    turned = step(ledger, "-1", bar(80, hour=4))
    assert (turned.quantity, turned.reason) == (0, Reason.DAILY_LOSS)
    assert step(ledger, "1", bar(80, hour=23)).quantity == 0
    fresh = step(ledger, "1", bar(80, hour=24))
    assert (fresh.quantity, fresh.reason) == (Decimal("11.25"), Reason.NONE)


def test_a_loss_just_short_of_the_limit_does_not_bind():
    ledger = start(market(limits={"max_daily_loss": 0.1}))
    step(ledger, "0.5", bar(100, close="80.01"))
    assert step(ledger, "1", bar("80.01")).reason is Reason.NONE


def test_a_drawdown_allows_only_reductions_whatever_the_day():
    ledger = start(market(limits={"max_drawdown": 0.2}))
    step(ledger, "1", bar(100, close=125))  # peak 1,250
    step(ledger, None, bar(125, close=100))  # 1,000: a fifth below
    record = step(ledger, "-1", bar(100, hour=30))
    assert (record.quantity, record.reason) == (0, Reason.DRAWDOWN)
    assert step(ledger, "1", bar(100, hour=60)).quantity == 0


def test_turnover_is_rationed_by_the_day_but_the_way_to_zero_is_free():
    ledger = start(market(limits={"max_turnover": 1.5}))
    assert step(ledger, "1", bar(100, hour=1)).turnover == 1
    turned = step(ledger, "-1", bar(100, hour=2))
    assert (turned.quantity, turned.reason, turned.turnover) == (0, Reason.TURNOVER, 1)
    assert step(ledger, "1", bar(100, hour=3)).traded == 0
    assert step(ledger, "1", bar(100, hour=24)).quantity == 10
    assert step(ledger, "-1", bar(100, hour=48)).quantity == -5  # a fresh day: 1 and .5


def test_an_account_below_the_least_equity_is_closed():
    ledger = start(market(limits={"min_equity": 900.0}))
    step(ledger, "1", bar(100, close=89))
    record = step(ledger, "1", bar(89))
    assert (record.quantity, record.reason) == (0, Reason.BANKRUPT)


# No-trade windows


def closed_at(*, daily=(), ranges=(), around=0, clock):
    times = NoTradeTimes(NoTrade(daily=daily, ranges=ranges, around_funding_minutes=around))
    hours, minutes = clock.split(":")
    day = 19_723 * 24 * HOUR  # 2024-01-01
    return day + int(hours) * HOUR + round(float(minutes) * MINUTE) in times


@pytest.mark.parametrize(
    ("window", "clock", "closed"),
    [
        ("23:50-00:10", "23:49", False),
        ("23:50-00:10", "23:50", True),
        ("23:50-00:10", "00:00", True),
        ("23:50-00:10", "00:09.999", True),
        ("23:50-00:10", "00:10", False),
        ("23:50-00:10", "12:00", False),
        ("08:00-09:30", "07:59", False),
        ("08:00-09:30", "08:00", True),
        ("08:00-09:30", "09:29", True),
        ("08:00-09:30", "09:30", False),
        ("22:00-24:00", "23:59", True),
        ("22:00-24:00", "00:00", False),
    ],
)
def test_daily_windows_include_their_start_and_not_their_end(window, clock, closed):
    assert closed_at(daily=(window,), clock=clock) is closed


@pytest.mark.parametrize(
    ("clock", "closed"),
    [("00:05", True), ("00:06", False), ("07:54", False), ("07:55", True), ("16:00", True)],
)
def test_no_order_goes_out_around_funding(clock, closed):
    assert closed_at(around=5, clock=clock) is closed
    assert closed_at(around=0, clock=clock) is False


@pytest.mark.parametrize(
    ("clock", "closed"), [("09:59", 0), ("10:00", 1), ("10:59", 1), ("11:00", 0)]
)
def test_single_windows_are_instants_whatever_their_zone(clock, closed):
    window = ("2024-01-01T12:00:00+02:00", "2024-01-01T11:00:00Z")
    assert closed_at(ranges=(window,), clock=clock) is bool(closed)


def test_a_window_keeps_the_position_and_may_drop_the_sample():
    window = {"daily": ("02:00-03:00",), "drop_samples": True}
    ledger = start(market(no_trade=window))
    step(ledger, "1", bar(100, hour=1))
    blocked = step(ledger, "0", bar(100, hour=2))
    assert (blocked.quantity, blocked.blocked, blocked.sample_weight) == (10, True, 0.0)
    kept = step(ledger, None, bar(100, ts=2 * HOUR + MINUTE))
    assert (kept.blocked, kept.sample_weight) == (False, 1.0)  # nothing was to be sent
    sent = step(ledger, "0", bar(100, hour=3))
    assert (sent.quantity, sent.blocked, sent.sample_weight) == (0, False, 1.0)


def test_no_order_goes_out_where_the_impact_is_not_known():
    config = market(costs={"impact": 0.01})
    assert step(start(config), "1", bar(100)).blocked
    known = step(start(config), "1", bar(100, trailing_notional=Decimal(1)))
    assert (known.blocked, known.traded > 0) == (False, True)
    assert not step(start(market()), "1", bar(100)).blocked


# Reward and end


def test_reaching_the_floor_ends_the_episode_with_a_penalty():
    config = market(stops={"equity_floor": 0.5}, ruin_penalty=2.0)
    record = step(start(config), "1", bar(100, close=50))

    assert (record.terminated, record.truncated) == (True, False)
    assert record.reward_raw_fraction == pytest.approx(math.log(0.5) - 2.0, rel=1e-15)
    above = step(start(config), "1", bar(100, close="50.01"))
    assert above.terminated is False
    assert above.reward_raw_fraction == pytest.approx(math.log(0.5001), rel=1e-14)


def test_the_used_reward_is_clipped_on_both_sides():
    config = market(reward_clip=0.1)
    rise = step(start(config), "1", bar(100, close=150))
    fall = step(start(config), "1", bar(100, close=60))
    flat = step(start(config), "1", bar(100, close=101))

    assert (rise.reward_used_fraction, fall.reward_used_fraction) == (0.1, -0.1)
    assert rise.reward_raw_fraction == pytest.approx(math.log(1.5), rel=1e-15)
    assert flat.reward_used_fraction == flat.reward_raw_fraction


def test_a_drawdown_stop_ends_the_episode():
    ledger = start(market(stops={"drawdown": 0.2}))
    assert step(ledger, "1", bar(100, close=125)).terminated is False
    assert step(ledger, None, bar(125, close="100.01")).terminated is False
    assert step(ledger, None, bar(100, close=100)).terminated is True


def test_the_last_row_truncates_unless_it_terminates():
    ledger = start(market(episode_bars=2))
    assert step(ledger, "0", bar(100)).truncated is False
    assert step(ledger, "0", bar(100)).truncated is True
    ruined = step(start(market(episode_bars=1)), "1", bar(100, close=1))
    assert (ruined.terminated, ruined.truncated) == (True, False)


def test_the_end_of_the_data_truncates():
    bars = [bar(100, hour=hour) for hour in range(4)]
    records = replay(market(), bars, [Decimal(1)] * 3, symbol="BTC/USDT")
    assert [record.truncated for record in records] == [False, False, True]


def test_a_replay_stops_where_the_episode_ends():
    bars = [bar(100), bar(100), bar(100, close=1), bar(100)]
    records = replay(market(), bars, [Decimal(1)] * 3, symbol="BTC/USDT")
    assert [record.terminated for record in records] == [False, True]
    assert records[0].signal_pos_requested == 1


@pytest.mark.refusal
def test_a_step_after_the_end_is_refused():
    ledger = start(market(episode_bars=1))
    ledger.step(bar(100), None)
    with pytest.raises(RangeError) as caught:
        ledger.step(bar(100, hour=2), None)
    assert str(caught.value) == (
        "an episode that has ended must take no further step; found a bar at 7200000 ms. "
        "Start a new `ReferenceLedger` for the next episode. [out-of-range]"
    )


@pytest.mark.refusal
def test_a_replay_refuses_a_weight_for_the_last_row():
    with pytest.raises(ShapeError) as caught:
        replay(market(), [bar(100)] * 3, [None] * 3, symbol="BTC/USDT")
    assert str(caught.value) == (
        "`weights` must have one element fewer than `bars`; found 3 weights and 3 bars. "
        "Leave out the weight of the last row; its order would fill after the data. "
        "[shape-mismatch]"
    )


# Identity


@pytest.mark.refusal
def test_money_that_appears_is_named():
    ledger = start(market())
    ledger.account.cash += Decimal("0.5")
    with pytest.raises(InvariantError) as caught:
        ledger.check_identity()
    assert str(caught.value) == (
        "cash must equal the sum of everything that ever changed it; found 1000.5 held and 1000.0 "
        "summed up. Report this with the configuration and the bars that led to it. "
        "[ledger-identity]"
    )


@pytest.mark.parametrize(
    ("name", "broken"),
    [("quantity", "quantity"), ("filled", "quantity"), ("gross", "equity"), ("mark", "equity")],
)
def test_the_smallest_difference_is_noticed(name, broken):
    ledger = start(market())
    step(ledger, "1", bar(100))
    with localcontext(EXACT):
        setattr(ledger.account, name, getattr(ledger.account, name) + Decimal("1e-300"))
    with pytest.raises(InvariantError, match=f"^{broken} must equal"):
        ledger.check_identity()


def test_totals_add_up_what_the_records_say():
    config = market(
        costs={"taker_fee": 0.001, "half_spread": 0.001, "impact": 0.01},
        limits={"max_leverage": 4.0},
        margin={"maintenance": 0.2},
    )
    ledger = start(config)
    rows = [("4", 100, 98), ("-4", 98, 99), ("4", 99, 60), ("1", 60, 61), (None, 61, 62)]
    records = [
        step(
            ledger,
            weight,
            bar(a, close=b, funding_rate=Decimal("0.001"), trailing_notional=Decimal(10**6)),
        )
        for weight, a, b in rows
    ]
    account = ledger.account
    with localcontext(EXACT):
        assert account.fees == sum(record.fee_total for record in records)
        assert account.funding == sum(record.funding for record in records)
        assert account.slippage == account.crossing == sum(record.slippage for record in records)
        assert [record.liquidated for record in records] == [False, False, True, False, False]


# Data


def test_the_trailing_notional_is_the_mean_of_the_rows_there_are():
    closes = [Decimal(value) for value in (1, 2, 3, 4)]
    volumes = [Decimal(value) for value in (10, 10, 20, 0)]

    # Notionals 10, 20, 60, 0 over two rows: 10, 15, 40, 30.
    assert trailing_notional(closes, volumes, 2) == [10, 15, 40, 30]
    assert trailing_notional(closes, volumes, 9) == [10, 15, 30, Decimal("22.5")]


def panel(**extra):
    close = np.array([100.1, 101.0, 99.5])
    columns = {
        "ts": np.array([0, 8, 16]) * HOUR,
        "open": close - 0.1,
        "high": close + 1.0,
        "low": close - 1.0,
        "close": close,
        "volume": np.array([2.0, 3.0, 5.0]),
    }
    bars = from_columns("BTC/USDT:USDT", Interval.parse("8h"), columns | extra)
    rates = Funding("BTC/USDT:USDT", pa.table({"ts": [8 * HOUR], "funding_rate": [1e-4]}))
    return Panel.from_bars([bars], {"BTC/USDT:USDT": rates})


def test_bars_of_a_panel_are_its_doubles_and_know_only_closed_volume():
    first, second, third = reference_bars(panel(), "BTC/USDT:USDT", impact_window=1)

    assert first == ReferenceBar(
        ts_ms=0,
        open=Decimal.from_float(100.1 - 0.1),
        high=Decimal.from_float(100.1 + 1.0),
        low=Decimal.from_float(100.1 - 1.0),
        close=Decimal.from_float(100.1),
        tradable=True,
        funding_rate=Decimal(0),
        trailing_notional=Decimal(0),
        volume=Decimal(2),
    )
    with localcontext(EXACT):
        assert second.trailing_notional == Decimal.from_float(100.1) * 2
    assert (second.funding_rate, third.funding_rate) == (Decimal.from_float(1e-4), 0)
    assert third.trailing_notional == 303


def test_a_quote_volume_takes_the_place_of_close_times_volume():
    with_quote = panel(quote_volume=np.array([7.0, 11.0, 13.0]))
    rows = reference_bars(with_quote, "BTC/USDT:USDT", impact_window=2)
    assert [row.trailing_notional for row in rows] == [0, 7, 9]


def test_the_ledger_shares_no_arithmetic_with_the_tensors():
    own = {"reference", "reference_account", "reference_gate"}
    allowed = {"collections", "datetime", "decimal", "enum", "math", "typing"}
    for name in own:
        source = Path(reference.__file__).with_name(f"{name}.py").read_text()
        for node in ast.parse(source).body:
            if isinstance(node, ast.Import):
                assert {alias.name for alias in node.names} <= allowed
            elif isinstance(node, ast.ImportFrom) and node.module.startswith("stormsail."):
                _, package, *rest = node.module.split(".")
                assert package == "core" or (rest[0] == "crosscheck" and set(rest[1:]) <= own)
            elif isinstance(node, ast.ImportFrom):
                assert node.module.split(".")[0] in allowed
