"""Sizes of orders in whole lots, and orders that the market takes only in parts."""

from dataclasses import replace
from decimal import Decimal

import pytest

from stormsail.execution.orders.placing import MOST_PARTS, legs_of, parts_of
from stormsail.execution.venue import Market

D = Decimal
ZERO = D(0)
MARKET = Market(
    "BTC/USDT:USDT", "perpetual", "trading", "BTC", "USDT", "USDT", D("0.1"),
    D("0.001"), D("0.001"), D("0.001"), D(1000), D(5), ZERO, ZERO, ZERO, D(2),
)  # fmt: skip


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("2", ["2"]),
        ("2.001", ["1.001", "1.000"]),  # 2,001 lots in two orders
        ("4", ["2", "2"]),
        ("5", ["1.667", "1.667", "1.666"]),  # 5,000 lots in three
        ("40", ["2"] * 20),
        ("40.001", ["40.001"]),  # 21 of them: the gate says what is too large
    ],
)
def test_a_size_is_cut_into_as_few_parts_as_the_market_takes(size, expected):
    assert parts_of(D(size), MARKET) == list(map(D, expected))
    assert MOST_PARTS == 20


def test_both_filters_of_quantities_bound_a_part():
    assert parts_of(D(3), replace(MARKET, max_quantity=D(1))) == [D(1)] * 3
    assert parts_of(D(3), replace(MARKET, market_max=ZERO)) == [D(3)]
    assert parts_of(D(3), replace(MARKET, market_max=ZERO, max_quantity=ZERO)) == [D(3)]


def test_what_no_part_could_keep_to_is_left_whole():
    assert parts_of(D(4), replace(MARKET, market_lot=D(4))) == [D(4)]
    assert parts_of(D(3), replace(MARKET, market_lot=ZERO, lot=ZERO)) == [D(3)]
    assert parts_of(D(3), replace(MARKET, market_lot=ZERO)) == [D("1.5"), D("1.5")]


@pytest.mark.spec("R24")
@pytest.mark.parametrize(
    ("wanted", "held", "expected"),
    [
        (-3.0, 0.0, ("0", "3")),
        (3.0, 1.0, ("0", "3")),  # it grows
        (-1.0, 3.0, ("1", "0")),  # it shrinks
        (-3.0, 3.0, ("3", "0")),
        (-5.0, 3.0, ("3", "2")),  # it is turned
        (5.0, -3.0, ("3", "2")),
        (-3.0004, 3.0, ("3", "0")),  # what is less than a lot opens nothing
        (-3.02, 3.0, ("3", "0.02")),
        (-3.004, 3.0, ("3", "0")),  # nor does what is worth less than the least order: 5 at 500
        (-5.0, 0.0005, ("0", "5")),  # dust that no order closes, and no stop
    ],
)
def test_an_order_that_turns_a_position_closes_it_and_opens_another(wanted, held, expected):
    closing, opening = map(D, expected)
    assert legs_of(wanted, held, MARKET, D(500), turns=True) == (closing, opening)
    single = (ZERO, closing + opening) if opening else (closing, opening)
    if abs(wanted) > abs(held) > 0.0 and wanted * held < 0.0:
        single = (ZERO, D(repr(abs(wanted))).quantize(D("0.001"), "ROUND_FLOOR"))
    assert legs_of(wanted, held, MARKET, D(500), turns=False) == single  # on paper no stop fires


def test_what_no_order_can_close_is_turned_with_the_rest():
    market = replace(MARKET, min_quantity=D("0.01"))
    assert legs_of(-5.0, 0.01, market, D(500), turns=True) == (D("0.01"), D("4.99"))
    assert legs_of(-5.0, 0.009, market, D(500), turns=True) == (ZERO, D(5))
