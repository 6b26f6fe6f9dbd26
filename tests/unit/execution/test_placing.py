"""Sizes of orders in whole lots, and orders that the market takes only in parts."""

from dataclasses import replace
from decimal import Decimal

import pytest

from stormsail.execution.orders.placing import MOST_PARTS, parts_of
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
