"""Live accounts between two closes: several fills of one position, and what they cost."""

from decimal import Decimal

import pytest
import torch

from backtest_lab import agent_for, panel
from execution_lab import MemoryVenue, bars_of
from stormsail.core.clock import ManualClock
from stormsail.execution.decisions.ledger import VenueBar, live_close
from stormsail.execution.decisions.path import DecisionPath, Setup
from stormsail.execution.venue import Position, Trade
from stormsail.functional.market import fills


def traded(symbol, number, side, quantity, price):
    return Trade(
        f"{symbol}-{number}", "1", symbol, side, Decimal(price), Decimal(quantity), Decimal("0.1"),
        "USDT", 1_000 + number,
    )  # fmt: skip


@pytest.fixture
def desk():
    market = panel(130, seed=3, symbols=3, calm=True)
    setup = Setup.of(agent_for(market), market, capital=3_000.0, burn_in=5)
    venue = MemoryVenue(bars_of(market), ManualClock(int(market.ts[60]) * 1_000_000))
    path = DecisionPath(setup)
    state = path.opened(torch.full((3,), 100.0, dtype=torch.float64))
    ordered = path.fill(state, torch.zeros_like(state.equity), path.shut(state, 0).bar())
    return setup.symbols, state, ordered, venue.markets(setup.symbols)


@pytest.mark.spec("D4")
def test_fills_that_follow_each_other_give_the_bits_of_one_after_the_other(desk):
    symbols, state, ordered, markets = desk
    trades = [
        traded(symbols[0], 0, "buy", "1.3", "100.07"),
        traded(symbols[2], 1, "sell", "0.7", "99.93"),
        traded(symbols[0], 2, "buy", "0.4", "101.11"),
        traded(symbols[2], 3, "buy", "1.9", "98.01"),  # turns it
        traded(symbols[0], 4, "sell", "0.2", "99.99"),  # leaves the mean alone
    ]
    held = [Decimal("1.5"), Decimal(0), Decimal("1.2")]
    positions = {own: Position(own, size) for own, size in zip(symbols, held, strict=True)}
    close = torch.tensor([100.5, 100.0, 99.5], dtype=torch.float64)
    booked = VenueBar(trades, (), positions, markets)
    after, adoptions = live_close(state, ordered, symbols, booked, close)

    expected = []
    for row, symbol in enumerate(symbols):
        quantity, entry = Decimal(0), state.entry_price[row]
        for own in (trade for trade in trades if trade.symbol == symbol):
            signed = own.quantity if own.side == "buy" else -own.quantity
            numbers = [
                torch.tensor(float(x), dtype=torch.float64) for x in (quantity, signed, own.price)
            ]
            entry = fills.entry_price(numbers[0], entry, *numbers[1:])
            quantity += signed
        expected.append(float(entry))
    assert adoptions == []
    assert after.entry_price.tolist() == expected  # to the bit
    assert after.quantity.tolist() == [1.5, 0.0, 1.2]
    # 1,000 - 1.3 * 100.07 - .4 * 101.11 + .2 * 99.99 - .3 of fees
    # 1,000 + .7 * 99.93 - 1.9 * 98.01 - .2
    assert after.cash.tolist() == [849.163, 1000.0, 883.532]
    assert after.equity.tolist() == (after.cash + after.quantity * close).tolist()


@pytest.mark.spec("M32")
def test_what_no_fill_explains_is_adopted_at_the_close_and_a_flat_position_has_no_entry(desk):
    symbols, state, ordered, markets = desk
    trades = [
        traded(symbols[0], 0, "buy", "1", "100"),
        traded(symbols[1], 1, "buy", "1", "100"),
        traded(symbols[1], 2, "sell", "1", "101"),
    ]
    held = [Decimal(3), Decimal(0), Decimal(0)]
    positions = {own: Position(own, size) for own, size in zip(symbols, held, strict=True)}
    close = torch.tensor([103.0, 100.0, 100.0], dtype=torch.float64)
    booked = VenueBar(trades, (), positions, markets)
    after, adoptions = live_close(state, ordered, symbols, booked, close)
    assert [(own.symbol, own.expected, own.found) for own in adoptions] == [
        (symbols[0], Decimal(1), Decimal(3))
    ]
    # one at 100 and two that were adopted at 103: a mean of 102
    assert after.entry_price.tolist() == [102.0, 0.0, 0.0]
    assert after.cash.tolist() == [1000 - 100 - 0.1 - 206, 1000 + 1 - 0.2, 1000.0]
