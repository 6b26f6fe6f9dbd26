"""Accounts of S symbols between two closes: as the simulator keeps them, or as the venue says.

Paper accounts are those of the backtest: one call of `market.simulator.trade` with the bar that has
closed, at the price by which the order was sized. Live accounts take their quantity from the venue,
always: a position that nobody here ordered is adopted with a word, never assumed away. Cash moves
by fills, fees and funding as the venue booked them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.core.files.documents import JsonValue
from stormsail.execution.decisions.path import DecisionPath, Opening
from stormsail.execution.venue import ZERO, FundingPayment, Market, Position, Trade
from stormsail.functional.market import fills
from stormsail.market.simulator.account import Fill, State, apply_fill

ACCOUNT = (
    "cash",
    "quantity",
    "entry_price",
    "price",
    "equity",
    "peak_equity",
    "day_start_equity",
    "turnover",
    "bars_in_position",
)
"""Columns of an account that a journal holds; the rest follows from agent and market."""


def account_documents(state: State) -> list[dict[str, JsonValue]]:
    """Return each account as plain numbers, which read back to the same bits."""
    columns = {name: getattr(state, name).tolist() for name in ACCOUNT}
    count = len(state.cash)
    return [{name: columns[name][row] for name in ACCOUNT} for row in range(count)]


def accounts_from(documents: Sequence[Mapping[str, JsonValue]], like: State) -> State:
    """Return accounts with the numbers of documents and the costs of others."""
    return like._replace(
        **{
            name: torch.tensor(
                [document[name] for document in documents], dtype=getattr(like, name).dtype
            )
            for name in ACCOUNT
        }
    )


_ROUNDING = Decimal("1e-9")
"""Share of a position within which two quantities are the same, where there is no lot."""


class Prices(NamedTuple):
    """High, low and close of the bar that has closed, [S] each in float64."""

    high: Tensor
    low: Tensor
    close: Tensor


class Booked(NamedTuple):
    """Accounts after a bar, and what it did."""

    state: State
    fill: Fill


def simulated_close(
    path: DecisionPath,
    state: State,
    requested: Tensor,
    opening: Opening,
    executed: Tensor,
    prices: Prices,
) -> Booked:
    """Return paper accounts after a bar: the simulator's own step.

    Args:
        path: rules and order steps.
        state: accounts at the close before.
        requested: weights that reached the risk gate.
        opening: by which orders were sized.
        executed: whether the order of each symbol was sent, bool; one that the order gate refused
            is an order that could not be traded.
        prices: of the bar.
    """
    bar = opening.closed(*prices, may_trade=opening.may_trade & executed)
    fill = path.fill(state, requested, bar)
    return Booked(apply_fill(state, fill, state.row + 1, prices.close), fill)


@dataclass(frozen=True)
class VenueBar:
    """What the venue booked between two closes, and what it holds now."""

    trades: Sequence[Trade]
    funding: Sequence[FundingPayment]
    positions: Mapping[str, Position]
    markets: Mapping[str, Market]


@dataclass(frozen=True)
class Adoption:
    """A change of a position that no order of this journal explains."""

    symbol: str
    expected: Decimal
    found: Decimal


def unexplained(state: State, symbols: Sequence[str], booked: VenueBar) -> list[str]:
    """Return the symbols whose position at the venue is not what the booked trades made of it.

    Args:
        state: accounts at the close before.
        symbols: of the accounts.
        booked: by the venue since then, as far as the journal knows.
    """
    quantities = zip(symbols, state.quantity.tolist(), strict=True)
    held = {symbol: _exact(quantity) for symbol, quantity in quantities}
    for trade in booked.trades:
        if trade.symbol in held:
            held[trade.symbol] += _received(trade, booked.markets[trade.symbol])
    return [
        symbol
        for symbol, own in held.items()
        if _without_dust(booked.positions[symbol].quantity, booked.markets[symbol]) != own
    ]


def _received(trade: Trade, market: Market) -> Decimal:
    """Return by how much a fill changed a position; on spot a fee may be taken from the coins."""
    signed = trade.quantity if trade.side == "buy" else -trade.quantity
    paid_in_coins = trade.fee_asset == market.base and market.kind == "spot"
    return signed - trade.fee if paid_in_coins else signed


def live_close(
    state: State, ordered: Fill, symbols: Sequence[str], booked: VenueBar, close: Tensor
) -> tuple[State, list[Adoption]]:
    """Return live accounts after a bar, and the changes that no order here explains.

    Args:
        state: accounts at the close before.
        ordered: what was ordered at the open, for the day's start and turnover.
        symbols: of the accounts.
        booked: by the venue since then.
        close: price of each symbol now.
    """
    expected = ordered.day_turnover - ordered.turnover  # the fills below are what was traded
    cash, quantity, turnover = (
        column.tolist() for column in (state.cash, state.quantity, expected)
    )
    marks, worth = close.tolist(), state.equity.tolist()
    trades: dict[str, list[Trade]] = {}
    for trade in booked.trades:
        trades.setdefault(trade.symbol, []).append(trade)
    changes: list[list[_Change]] = [[] for _ in symbols]
    adoptions = []
    for row, symbol in enumerate(symbols):
        market = booked.markets[symbol]
        money, held = _exact(cash[row]), _exact(quantity[row])
        for trade in trades.get(symbol, ()):
            signed = trade.quantity if trade.side == "buy" else -trade.quantity
            changes[row].append(_Change(float(held), float(signed), float(trade.price)))
            money -= signed * trade.price
            held += _received(trade, market)
            if trade.fee_asset == market.quote:
                money -= trade.fee
            if worth[row] > 0:
                turnover[row] += float(trade.quantity * trade.price) / worth[row]
        money += sum((pay.amount for pay in booked.funding if pay.symbol == symbol), ZERO)
        at_venue = _without_dust(booked.positions[symbol].quantity, market)
        if abs(at_venue - held) > max(market.market_lot, _ROUNDING * abs(held)):
            adoptions.append(Adoption(symbol, held, at_venue))
            change = at_venue - held
            changes[row].append(_Change(float(held), float(change), marks[row]))
            money -= change * _exact(marks[row])
        cash[row], quantity[row] = float(money), float(at_venue)
    known = state.cash.new_tensor([cash, quantity, turnover])
    entry = _entries(state.entry_price, changes)
    fill = ordered._replace(
        cash=known[0],
        quantity=known[1],
        entry_price=torch.where(known[1] != 0.0, entry, 0.0),
        equity=known[0] + known[1] * close,
        day_turnover=known[2],
    )
    return apply_fill(state, fill, state.row + 1, close), adoptions


class _Change(NamedTuple):
    """A change of a position."""

    held: float
    """Before it."""
    signed: float
    price: float


def _entries(entry: Tensor, changes: Sequence[Sequence[_Change]]) -> Tensor:
    """Return mean entry prices after changes of each position, which follow each other.

    The first changes of all positions are one batch, then the second ones: each element has the
    bits that it has alone, and the formula is called once for a bar in which no order was cut.
    """
    entry = entry.clone()
    for number in range(max(map(len, changes), default=0)):
        rows = [row for row, own in enumerate(changes) if len(own) > number]
        held, signed, price = entry.new_tensor([changes[row][number] for row in rows]).unbind(-1)
        entry[rows] = fills.entry_price(held, entry[rows], signed, price)
    return entry


def _without_dust(quantity: Decimal, market: Market) -> Decimal:
    """Return a position; what is less than one step of orders cannot be traded and counts as 0."""
    return ZERO if abs(quantity) < market.market_lot else quantity


def _exact(number: float) -> Decimal:
    """Return a number as the shortest decimal that gives it back."""
    return Decimal(repr(number))
