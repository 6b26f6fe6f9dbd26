"""Orders worked out by hand: what is bought, at which price, and when margin is gone."""

import math

import pytest
import torch

from stormsail.core.errors import RangeError, ShapeError
from stormsail.functional.market import fills


def tensor(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def terms(fee=0.0, half_spread=0.0, impact=0.0, lot=0.0, tick=0.0):
    return fills.Terms(*(tensor(number) for number in (fee, half_spread, impact, lot, tick)))


def ordered(weight, equity, quantity, price, notional=1e9, *, min_rebalance=0.0, **costs):
    inputs = (tensor(number) for number in (weight, equity, quantity, price, notional))
    order = fills.order_quantity(*inputs, terms(**costs), min_rebalance=min_rebalance)
    return order.item()


def filled(price, order, notional=1e9, **costs):
    return fills.fill_price(tensor(price), tensor(order), tensor(notional), terms(**costs)).item()


# (weight, equity, quantity, price, order) in a market without costs.
FREE = {
    "open-long": (0.5, 1000.0, 0.0, 10.0, 50.0),
    "open-short": (-0.5, 1000.0, 0.0, 10.0, -50.0),
    "increase": (1.0, 1000.0, 50.0, 10.0, 50.0),
    "reduce": (0.2, 1000.0, 50.0, 10.0, -30.0),
    "turn": (-1.0, 1000.0, 50.0, 10.0, -150.0),
    "close-long": (0.0, 1000.0, 50.0, 10.0, -50.0),
    "close-short": (0.0, 1000.0, -50.0, 10.0, 50.0),
    "nothing": (0.5, 1000.0, 50.0, 10.0, 0.0),
    "leverage": (3.0, 1000.0, 0.0, 10.0, 300.0),
}


@pytest.mark.parametrize("case", FREE.values(), ids=FREE)
def test_without_costs_the_order_is_the_gap(case):
    *account, order = case
    assert ordered(*account) == order


@pytest.mark.spec("M35")
def test_a_fee_is_reserved_so_that_weight_one_is_affordable():
    # D = 1000 / (1 + 0.001) = 999.000999...; D + fee = 1000 exactly.
    order = ordered(1.0, 1000.0, 0.0, 10.0, fee=0.001)
    assert order == pytest.approx(99.9000999000999, rel=1e-14)
    assert order * 10.0 * 1.001 == pytest.approx(1000.0, rel=1e-14)


def test_spread_and_fee_are_reserved_together():
    # Buying: slippage 0.01, fee on the slipped price: c = 0.01 + 0.001 * 1.01 = 0.01101.
    assert ordered(1.0, 1000.0, 0.0, 10.0, fee=0.001, half_spread=0.01) == pytest.approx(
        100.0 / 1.01101, rel=1e-14
    )
    # Selling to -1: c = 0.01 + 0.001 * 0.99 = 0.01099, and s w = (-1)(-1) = 1.
    assert ordered(-1.0, 1000.0, 0.0, 10.0, fee=0.001, half_spread=0.01) == pytest.approx(
        -100.0 / 1.01099, rel=1e-14
    )


def test_reducing_a_long_sells_more_because_the_costs_shrink_equity():
    # From 1000 held to half: gap -500, s w = -0.5, c = 0.01: D = 500 / 0.995.
    assert ordered(0.5, 1000.0, 100.0, 10.0, half_spread=0.01) == pytest.approx(
        -50.0 / 0.995, rel=1e-14
    )


def test_impact_is_reserved_at_the_size_of_the_gap():
    # |g| / M = 1000 / 4000 = 0.25, so the slippage is 0.02 * 0.5 = 0.01.
    assert ordered(1.0, 1000.0, 0.0, 10.0, 4000.0, impact=0.02) == pytest.approx(
        100.0 / 1.01, rel=1e-14
    )


def test_a_tick_is_reserved_as_a_share_of_the_price():
    assert ordered(1.0, 1000.0, 0.0, 10.0, tick=0.1) == pytest.approx(100.0 / 1.01, rel=1e-14)


@pytest.mark.spec("M36")
@pytest.mark.parametrize(
    ("weight", "quantity", "order"),
    [(0.5, 0.0, 49.5), (-0.5, 0.0, -49.5), (0.0, 49.5, -49.5), (0.001, 0.0, 0.0)],
)
def test_lots_cut_towards_zero(weight, quantity, order):
    assert ordered(weight, 999.0, quantity, 10.0, lot=0.5) == order


def test_closing_leaves_nothing_whatever_the_lot():
    assert ordered(0.0, 1000.0, 0.3, 10.0, lot=0.1, fee=0.01, impact=0.5) == -0.3


def test_a_small_change_is_not_traded_but_a_closing_is():
    assert ordered(0.55, 1000.0, 50.0, 10.0, min_rebalance=0.06) == 0.0
    assert ordered(0.57, 1000.0, 50.0, 10.0, min_rebalance=0.06) == pytest.approx(7.0, rel=1e-13)
    assert ordered(0.0, 1000.0, 0.1, 10.0, min_rebalance=0.06) == -0.1


def test_a_change_of_exactly_the_least_is_traded():
    assert ordered(0.75, 1000.0, 50.0, 10.0, min_rebalance=0.25) == 25.0


def test_costs_never_turn_or_reverse_what_they_make_dear():
    # From 10 to 5 times the equity: gap -50,000, c = 0.01 * sqrt(50,000 / M), share 1 - 5 c.
    # M = 100: c = 0.2236, share -0.118: nothing can be sold. M = 130: share 0.0194 asks for
    # 25,700 units; the position is 1,000.
    assert ordered(5.0, 10_000.0, 1_000.0, 100.0, 100.0, impact=0.01) == 0.0
    assert ordered(5.0, 10_000.0, 1_000.0, 100.0, 130.0, impact=0.01) == -1_000.0
    assert ordered(-5.0, 10_000.0, -1_000.0, 100.0, 100.0, impact=0.01) == 0.0
    assert ordered(-5.0, 10_000.0, -1_000.0, 100.0, 130.0, impact=0.01) == 1_000.0


def test_buying_costs_more_and_selling_gives_less():
    assert filled(100.0, 2.0, half_spread=0.01) == 101.0
    assert filled(100.0, -2.0, half_spread=0.01) == 99.0


def test_impact_grows_with_the_root_of_the_traded_share():
    # 5 * 100 / 2000 = 0.25, root 0.5, times 0.02.
    assert filled(100.0, 5.0, 2000.0, impact=0.02) == 101.0
    assert filled(100.0, -5.0, 2000.0, impact=0.02) == 99.0
    assert filled(100.0, 20.0, 2000.0, impact=0.02) == 102.0


def test_without_volume_there_is_no_impact():
    assert filled(100.0, 5.0, 0.0, impact=0.02) == 100.0


def test_ticks_round_against_the_trader():
    assert filled(100.0, 1.0, half_spread=0.0012, tick=0.25) == 100.25
    assert filled(100.0, -1.0, half_spread=0.0012, tick=0.25) == 99.75


def test_a_price_on_the_grid_stays_there():
    assert filled(100.1, 1.0, tick=0.1) == pytest.approx(100.1, rel=1e-15)
    assert filled(100.1, -1.0, tick=0.1) == pytest.approx(100.1, rel=1e-15)


@pytest.mark.parametrize(
    ("x", "step", "wanted"),
    [
        (0.3, 0.1, 0.1 * 3),
        (0.7, 0.1, 0.1 * 7),
        (0.29999, 0.1, 0.2),
        (0.35, 0.1, 0.1 * 3),
        (-0.35, 0.1, -0.4),
        (7.0, 0.0, 7.0),
        (0.0, 0.1, 0.0),
        (0.05, 0.1, 0.0),
        (1e9 + 0.5, 1.0, 1e9),
    ],
)
def test_cut_down_gives_the_multiple_below(x, step, wanted):
    assert fills.cut_down(tensor(x), tensor(step)).item() == wanted


def test_cut_down_takes_64_roundings_for_a_whole_number_and_no_more():
    near = 1.0 - 60 * 2.0**-53
    far = 1.0 - 200 * 2.0**-52
    assert fills.cut_down(tensor(near, far), tensor(1.0, 1.0)).tolist() == [1.0, 0.0]


# (quantity, entry, order, price, entry after)
ENTRIES = {
    "open": (0.0, 0.0, 2.0, 10.0, 10.0),
    "open-short": (0.0, 0.0, -2.0, 10.0, 10.0),
    "increase": (2.0, 10.0, 1.0, 13.0, 11.0),
    "increase-short": (-2.0, 10.0, -1.0, 7.0, 9.0),
    "reduce": (3.0, 11.0, -1.0, 50.0, 11.0),
    "reduce-short": (-3.0, 11.0, 1.0, 50.0, 11.0),
    "turn": (1.0, 10.0, -3.0, 12.0, 12.0),
    "turn-short": (-1.0, 10.0, 3.0, 12.0, 12.0),
    "close": (2.0, 10.0, -2.0, 12.0, 0.0),
    "no-fill": (2.0, 10.0, 0.0, 99.0, 10.0),
    "flat-no-fill": (0.0, 0.0, 0.0, 99.0, 0.0),
}


@pytest.mark.spec("TorchTrade-274")
@pytest.mark.parametrize("case", ENTRIES.values(), ids=ENTRIES)
def test_entry_price_after_a_fill(case):
    *inputs, wanted = case
    assert fills.entry_price(*(tensor(number) for number in inputs)).item() == wanted


def test_a_long_is_liquidated_where_equity_meets_the_margin():
    # -900 + 10 x = 0.1 * 10 x  =>  x = 100.
    price = fills.liquidation_price(tensor(-900.0), tensor(10.0), maintenance=0.1)
    assert price.item() == 100.0


def test_a_short_is_liquidated_where_equity_meets_the_margin():
    # 2200 - 10 x = 0.1 * 10 x  =>  x = 200.
    price = fills.liquidation_price(tensor(2200.0), tensor(-10.0), maintenance=0.1)
    assert price.item() == 200.0


def test_a_paid_long_is_never_liquidated_and_a_flat_account_has_no_price():
    prices = fills.liquidation_price(tensor(5.0, 5.0), tensor(1.0, 0.0), maintenance=0.1)
    assert prices[0].item() == pytest.approx(-5.0 / 0.9, rel=1e-15)
    assert math.isnan(prices[1].item())


TIERS = ((tensor(0.01), tensor(0.0)), (tensor(0.05), tensor(40.0)), (tensor(0.1), tensor(290.0)))
"""1 % up to 1,000, 5 % of what is above, 10 % above 5,000: amounts 0.04 * 1,000 = 40, and
40 + 0.05 * 5,000 = 290."""


@pytest.mark.parametrize(
    ("notional", "margin"),
    [
        (500.0, 5.0),  # 1 % of 500
        (1_000.0, 10.0),
        (3_000.0, 110.0),  # 10 + 5 % of 2,000
        (5_000.0, 210.0),  # 10 + 5 % of 4,000
        (8_000.0, 510.0),  # 210 + 10 % of 3,000
    ],
)
def test_the_margin_of_each_part_of_the_notional_is_added(notional, margin):
    assert fills.maintenance_margin(tensor(notional), TIERS).item() == pytest.approx(margin)


def test_a_tiered_position_is_lost_at_the_first_line_it_meets():
    # Long 50, cash -2,800: at x = 58 it is worth 2,900 and equity is 100; the margin of 2,900 is
    # 10 + 5 % of 1,900 = 105. 50 x - 2,800 = 0.05 * 50 x - 40  =>  x = 2,760 / 47.5.
    price = fills.tiered_liquidation_price(tensor(-2_800.0), tensor(50.0), TIERS)
    assert price.item() == pytest.approx(2_760 / 47.5, rel=1e-15)
    # Short 50, cash 6,800: 6,800 - 50 x = 0.1 * 50 x - 290  =>  x = 7,090 / 55 = 128.9, worth
    # 6,445, which is in the third tier.
    price = fills.tiered_liquidation_price(tensor(6_800.0), tensor(-50.0), TIERS)
    assert price.item() == pytest.approx(7_090 / 55, rel=1e-15)


def test_one_tier_is_a_plain_margin_and_a_flat_account_has_no_price():
    cash, quantity = tensor(-900.0, 2_200.0, 5.0), tensor(10.0, -10.0, 0.0)
    one = ((torch.full_like(cash, 0.1), torch.zeros_like(cash)),)
    prices = fills.tiered_liquidation_price(cash, quantity, one)
    plain = fills.liquidation_price(cash, quantity, maintenance=0.1)
    assert prices[:2].tolist() == plain[:2].tolist() == [100.0, 200.0]
    assert math.isnan(prices[2].item())


def test_interest_is_paid_on_coins_sold_short_and_on_money_owed():
    # Short 50 at 100, 1e-4 a bar: 0.5. Cash -3,000 at 2e-4: 0.6. Own coins and own cash: nothing.
    interest = fills.borrow_interest(
        tensor(15_000.0, -3_000.0, 4_000.0),
        tensor(-50.0, 130.0, 60.0),
        tensor(100.0, 100.0, 100.0),
        tensor(1e-4, 1e-4, 1e-4),
        tensor(2e-4, 2e-4, 2e-4),
    )
    assert interest.tolist() == pytest.approx([0.5, 0.6, 0.0], rel=1e-14)


def test_log_growth_counts_nothing_below_the_floor():
    growth = fills.log_growth(
        tensor(200.0, 10.0, -5.0, 100.0), tensor(100.0, 100.0, 100.0, 10.0), floor=50.0
    )
    assert growth.tolist() == pytest.approx(
        [math.log(2.0), math.log(0.5), math.log(0.5), math.log(2.0)], rel=1e-15
    )


def test_the_floor_keeps_its_double_precision():
    growth = fills.log_growth(tensor(0.0), tensor(1.0), floor=0.1)
    assert growth.item() == pytest.approx(math.log(0.1), rel=1e-15)


@pytest.mark.refusal
def test_shapes_that_differ_are_refused():
    two = tensor(1.0, 2.0)
    with pytest.raises(ShapeError, match=r"`weight` and `terms\.fee` must have the same shape"):
        fills.order_quantity(two, two, two, two, two, terms())
    with pytest.raises(ShapeError, match="`price` and `order` must have the same shape"):
        fills.fill_price(two, tensor(1.0), two, terms())
    with pytest.raises(ShapeError, match="`x` and `step` must have the same shape"):
        fills.cut_down(two, tensor(1.0))
    with pytest.raises(ShapeError, match="`quantity` and `price` must have the same shape"):
        fills.entry_price(two, two, two, tensor(1.0))
    with pytest.raises(ShapeError, match="`cash` and `quantity` must have the same shape"):
        fills.liquidation_price(two, tensor(1.0), maintenance=0.1)
    with pytest.raises(ShapeError, match="`equity` and `previous` must have the same shape"):
        fills.log_growth(two, tensor(1.0), floor=1.0)
    with pytest.raises(ShapeError):
        fills.tiered_liquidation_price(two, tensor(1.0), TIERS)
    with pytest.raises(ShapeError):
        fills.borrow_interest(two, two, two, two, tensor(1.0))


@pytest.mark.refusal
def test_impossible_numbers_are_refused():
    one = tensor(1.0)
    with pytest.raises(RangeError, match="`min_rebalance`"):
        fills.order_quantity(one, one, one, one, one, terms(), min_rebalance=-0.1)
    with pytest.raises(RangeError, match="`maintenance`"):
        fills.liquidation_price(one, one, maintenance=1.5)
    with pytest.raises(RangeError, match="`floor`"):
        fills.log_growth(one, one, floor=0.0)


@pytest.mark.refusal
def test_a_maintenance_of_one_is_refused_because_no_price_answers_it():
    with pytest.raises(RangeError, match="`maintenance`"):
        fills.liquidation_price(tensor(-5.0), tensor(1.0), maintenance=1.0)
