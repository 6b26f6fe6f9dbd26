"""Bars, orders and stops of a run in NautilusTrader, in exact decimals.

Written from the rules and not from the other two ledgers. The account is Nautilus's: what comes in
here is its equity and position, what goes out is the next order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stormsail.core.clock import iso
from stormsail.core.errors import DataError, DtypeError, ShapeError
from stormsail.market import Panel
from stormsail.market.bars import PRICES
from stormsail.market.simulator.config import MarketConfig, minutes_of_day

MOST_DECIMALS = 16
"""Decimals that a price or quantity of Nautilus can have."""

MONEY_DECIMALS = 8
"""Decimals of Nautilus's balances, in the currency used here."""

LARGEST_START = 10_000_000
"""Largest initial equity."""

LARGEST_BALANCE = 2 * LARGEST_START
"""A run whose balance passes this is refused. Nautilus computes money in float64 with 8 decimals,
which hold to 9e7; where margins are locked its 1.221 stops with an error from about 4e7."""

DEPTH = Decimal(10**13)
"""Quantity quoted at each open, near the largest that Nautilus can write."""

Weights = Sequence[float] | NDArray[np.float64] | Tensor

_MINUTE_MS = 60_000
_YEAR_MS = Decimal(365 * 24 * 60 * _MINUTE_MS)
_DAY_MINUTES = 24 * 60
_FUNDING_MINUTES = 8 * 60
_ZERO, _ONE = Decimal(0), Decimal(1)
Prices = tuple[Decimal, Decimal, Decimal]


@dataclass(frozen=True)
class Row:
    """One bar as exact decimals, with the quotes that stand at its open."""

    ts_ms: int
    open: Decimal
    high: Decimal
    low: Decimal
    close: Decimal
    bid: Decimal
    ask: Decimal
    rate: Decimal
    blocked: bool
    delisted: bool
    watched: Prices
    """Open, high and low by which margin is watched."""

    @property
    def prices(self) -> tuple[Decimal, Decimal, Decimal, Decimal]:
        """Open, high, low and close."""
        return self.open, self.high, self.low, self.close


@dataclass(frozen=True)
class Plan:
    """All that the engine needs: bars, weights, and the rules that decide on an order."""

    rows: tuple[Row, ...]
    weights: tuple[Decimal, ...]
    interval_ms: int
    initial: Decimal
    fee: Decimal
    half_spread: Decimal
    maintenance: tuple[tuple[Decimal, Decimal], ...]
    """Bound and rate of each tier."""
    interest: tuple[Decimal, Decimal]
    """Of a bar, on borrowed base and quote currency."""
    equity_floor: Decimal
    drawdown: Decimal | None
    min_rebalance: Decimal
    max_leverage: Decimal
    lot: Decimal
    tick: Decimal
    min_notional: Decimal
    price_decimals: int
    offered: tuple[Decimal, ...]
    continuous: bool

    def target(self, t: int, held: Decimal, equity: Decimal) -> Decimal | None:
        """Return the weight to trade to after the close of row t, or None to hold.

        A weight that is not on offer means the held one, which the leverage limit may still cut.
        """
        share = held * self.rows[t].close / equity
        weight = self.weights[t]
        offered = self._on_offer(weight)
        wanted = weight if offered else share
        allowed = max(-self.max_leverage, min(self.max_leverage, wanted))
        holds = allowed == share and not (offered and allowed == weight)
        return None if holds else allowed

    def _on_offer(self, weight: Decimal) -> bool:
        if not weight.is_finite():
            return False
        if self.continuous:
            return self.offered[0] <= weight <= self.offered[-1]
        return weight in self.offered

    def order(self, n: int, weight: Decimal, held: Decimal, equity: Decimal) -> Decimal:
        """Return the signed quantity to trade at the open of row n, 0 for none.

        With gap g = v E - q open, its sign s and the reserve r = half_spread open + tick, the size
        is |g| / (open + s v (r + fee (open + s r))), rounded down to lots: after the trade, marked
        at the open, the position is worth v times the equity that its costs have left. Written over
        a common denominator, so that the division into lots is exact; v = 0 sells what is held.

        Args:
            n: row at whose open the order fills.
            weight: target weight v.
            held: position q before the order.
            equity: E at the open, after funding.
        """
        row = self.rows[n]
        gap = weight * equity - held * row.open
        if gap == 0 or row.blocked:
            return _ZERO
        if weight != 0 and abs(gap) < self.min_rebalance * equity:
            return _ZERO
        side = _ONE.copy_sign(gap)
        reserve = self.half_spread * row.open + self.tick
        cost = reserve + self.fee * (row.open + side * reserve)
        size = abs(gap) // ((row.open + side * weight * cost) * self.lot) * self.lot
        price = row.ask if side > 0 else row.bid
        return _ZERO if size * price < self.min_notional else side * size

    def liquidates(self, price: Decimal, held: Decimal, equity: Decimal) -> bool:
        """Return whether the equity at a price no longer covers the maintenance margin."""
        worth = abs(held) * price
        bounds = [*(bound for bound, _ in self.maintenance[1:]), worth]
        margin = sum(
            (
                rate * max(min(worth, upper) - bound, _ZERO)
                for (bound, rate), upper in zip(self.maintenance, bounds, strict=True)
            ),
            _ZERO,
        )
        return held != 0 and equity <= margin

    def ends(self, equity: Decimal, peak: Decimal) -> bool:
        """Return whether a stop ends the run at this mark."""
        fell = self.drawdown is not None and peak - equity >= self.drawdown * peak
        return fell or equity <= self.equity_floor * self.initial


@dataclass(frozen=True)
class Fill:
    """One fill, as Nautilus reported it.

    Attributes:
        row: row of the panel at whose open it was filled.
        quantity: base currency, negative for a sale.
        price: quote currency.
        commission: quote currency.
    """

    row: int
    quantity: Decimal
    price: Decimal
    commission: Decimal


class Journal:
    """What happened, row by row, and the decision that waits for the next open.

    Attributes:
        equity, balance, position: at the close of each row so far.
        funding: paid at the open of each row, interest on loans included.
        orders: row, signed quantity and quoted price of all that was sent.
        fills: of those orders.
        liquidated: row in which the maintenance margin was gone, or None.
        delisted: row in which a position was held in a symbol that was delisted, or None.
        overflown: row in which the balance passed what Nautilus can count, or None.
        ended: row at whose close the account was ruined, the drawdown stop reached or the symbol
            delisted, or None.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.equity: list[Decimal] = []
        self.balance: list[Decimal] = []
        self.position: list[Decimal] = []
        self.funding: list[Decimal] = [_ZERO] * len(plan.rows)
        self.orders: list[tuple[int, Decimal, Decimal]] = []
        self.fills: list[Fill] = []
        self.liquidated: int | None = None
        self.delisted: int | None = None
        self.overflown: int | None = None
        self.ended: int | None = None
        self._target: Decimal | None = None
        self._peak = plan.initial

    @property
    def next(self) -> int:
        """The row whose close has not been seen."""
        return len(self.equity)

    @property
    def halted(self) -> bool:
        """Whether it is over: ended by a stop, or certain to be refused."""
        ends = (self.liquidated, self.delisted, self.overflown, self.ended)
        return any(end is not None for end in ends)

    def settle(self, held: Decimal) -> Decimal:
        """Return what a position pays at the open of the next row, to 8 decimals.

        Its funding, and interest on what was borrowed over the bar: the coins of a short position,
        and the money by which cash is below 0.
        """
        n, row = self.next, self.plan.rows[self.next]
        coins, money = self.plan.interest
        cash = self.equity[-1] - held * self.plan.rows[n - 1].close if n else _ZERO
        paid = held * row.open * row.rate
        paid += coins * max(-held, _ZERO) * row.open + money * max(-cash, _ZERO)
        self.funding[n] = paid = round(paid, MONEY_DECIMALS)
        return paid

    def open(self, held: Decimal, equity: Decimal) -> Decimal:
        """Return the signed quantity to trade at the next row's open, given the equity there."""
        n = self.next
        row = self.plan.rows[n]
        opened = row.watched[0]
        worth = equity + held * (opened - row.open)
        if not self.halted and self.plan.liquidates(opened, held, worth):
            self.liquidated = n
        if row.delisted and held != 0 and not self.halted:
            self.delisted = n
        if self.halted or self._target is None:
            return _ZERO
        quantity = self.plan.order(n, self._target, held, equity)
        if quantity != 0:
            self.orders.append((n, quantity, row.ask if quantity > 0 else row.bid))
        # A larger order could not be written, or would fill in parts; unfilled, it is refused.
        return quantity if abs(quantity) <= DEPTH else _ZERO

    def close(self, held: Decimal, equity: Decimal, balance: Decimal) -> None:
        """Mark the account at the next row's close and decide what to trade to."""
        if self.halted:
            return
        n = self.next
        row = self.plan.rows[n]
        _, high, low = row.watched
        worst = low if held > 0 else high
        if self.plan.liquidates(worst, held, equity + held * (worst - row.close)):
            self.liquidated = n
        if balance > LARGEST_BALANCE:
            self.overflown = n
        self.equity.append(equity)
        self.balance.append(balance)
        self.position.append(held)
        self._peak = max(self._peak, equity)
        if self.plan.ends(equity, self._peak) or row.delisted:
            self.ended = n
        last = n == len(self.plan.rows) - 1
        self._target = None if last or self.halted else self.plan.target(n, held, equity)


def make_plan(panel: Panel, symbol: str, weights: Weights, config: MarketConfig) -> Plan:
    """Return bars, quotes, weights and terms of one symbol.

    Raises:
        ShapeError: if there is not one weight for each row but the last.
        DtypeError: if the panel is not in float64.
        DataError: if a price has too many decimals or a bar contradicts itself.
        ChoiceError: if the panel has no such symbol.
    """
    column = panel.index(symbol)
    if panel.open.dtype != torch.float64:
        raise DtypeError(
            wrong="the panel must hold float64, because its prices are taken to the last digit",
            found=str(panel.open.dtype),
            remedy="Build it with `dtype=torch.float64`.",
        )
    filters = config.filters_of(symbol)
    tick = exact(filters.tick)
    half_spread = exact(config.costs.half_spread)
    rows = tuple(_rows(panel, column, config, tick=tick, half_spread=half_spread))
    drawdown = config.stops.drawdown
    (coins, money), bar = config.borrow_of(symbol), Decimal(panel.interval.milliseconds)
    return Plan(
        rows=rows,
        weights=_targets(weights, len(rows) - 1),
        interval_ms=panel.interval.milliseconds,
        initial=exact(config.initial_equity),
        fee=exact(config.fee_of(symbol)),
        half_spread=half_spread,
        maintenance=tuple(
            (exact(tier.notional), exact(tier.rate)) for tier in config.maintenance_of(symbol)
        ),
        interest=(exact(coins) * bar / _YEAR_MS, exact(money) * bar / _YEAR_MS),
        equity_floor=exact(config.stops.equity_floor),
        drawdown=None if drawdown is None else exact(drawdown),
        min_rebalance=exact(config.min_rebalance),
        max_leverage=exact(config.limits.max_leverage),
        lot=exact(filters.lot),
        tick=tick,
        min_notional=exact(filters.min_notional),
        price_decimals=_price_decimals(rows, tick, symbol),
        offered=tuple(exact(weight) for weight in config.offered),
        continuous=config.action == "continuous",
    )


def _targets(weights: Weights, count: int) -> tuple[Decimal, ...]:
    targets = torch.as_tensor(weights, dtype=torch.float64)
    if tuple(targets.shape) != (count,):
        raise ShapeError(
            wrong=f"`weights` must have one entry for each row but the last, {count}",
            found=f"shape {tuple(targets.shape)}",
            remedy="Pass the weight decided at the close of each row; the last has no next open.",
        )
    return tuple(exact(weight) for weight in targets.tolist())


def exact(number: float) -> Decimal:
    """Return the decimal that a float is written as: 0.0005 means five in ten thousand."""
    return Decimal(repr(number))


def decimals(number: Decimal) -> int:
    """Return how many decimals a number needs."""
    return max(0, -int(number.normalize().as_tuple().exponent))


def _rows(
    panel: Panel, column: int, config: MarketConfig, *, tick: Decimal, half_spread: Decimal
) -> Iterator[Row]:
    prices = zip(*(getattr(panel, name)[:, column].tolist() for name in PRICES), strict=True)
    rates = [exact(rate) for rate in panel.funding[:, column].tolist()]
    assumed = config.funding_missing
    if not isinstance(assumed, str) and panel.rates_missing is not None:
        missing = panel.rates_missing[:, column].tolist()
        rates = [rate + n * exact(assumed) for rate, n in zip(rates, missing, strict=True)]
    marks = None if panel.mark is None else panel.mark[:, column].tolist()
    alive = [
        bar and (volume > 0.0 or config.trade_without_volume)
        for bar, volume in zip(
            panel.tradable[:, column].tolist(), panel.volume[:, column].tolist(), strict=True
        )
    ]
    ends = _delisted(panel.ts.tolist(), alive, config.delisting.silent_days)
    for n, (ts_ms, four) in enumerate(zip(panel.ts.tolist(), prices, strict=True)):
        first, high, low, last = (exact(price) for price in four)
        if not 0 < low <= min(first, last) <= max(first, last) <= high:
            raise DataError(
                "data-defects",
                wrong="every bar must have 0 < low <= open, close <= high",
                found=f"open, high, low, close {first}, {high}, {low}, {last} at {iso(ts_ms)}",
                remedy="Run `stormsail check` and repair the bars.",
            )
        yield Row(
            ts_ms=ts_ms,
            open=first,
            high=high,
            low=low,
            close=last,
            # Away from the trader: she sells at the lower, buys at the higher multiple of a tick.
            bid=(first * (1 - half_spread) / tick).to_integral_value(ROUND_FLOOR) * tick,
            ask=(first * (1 + half_spread) / tick).to_integral_value(ROUND_CEILING) * tick,
            rate=rates[n] if config.funding else _ZERO,
            blocked=not alive[n] or _in_window(ts_ms, config),
            delisted=n == ends,
            watched=_watched((first, high, low), None if marks is None else marks[n]),
        )


def _watched(traded: Prices, mark: Sequence[float] | None) -> Prices:
    """Return open, high and low by which margin is watched: of the mark price if it is known."""
    if mark is None or any(price != price for price in mark):
        return traded
    opened, high, low = (exact(price) for price in mark)
    return opened, high, low


def _delisted(ts_ms: Sequence[int], alive: Sequence[bool], silent_days: float) -> int | None:
    """Return the row after the last one traded, if the data go on for long enough after that."""
    last = max((n for n, there in enumerate(alive) if there), default=None)
    if last is None or ts_ms[-1] - ts_ms[last] < silent_days * _DAY_MINUTES * _MINUTE_MS:
        return None
    return last + 1


def _in_window(ts_ms: int, config: MarketConfig) -> bool:
    """Return whether a no-trade window covers an instant: start included, end not."""
    minute = Decimal(ts_ms) / _MINUTE_MS % _DAY_MINUTES
    for window in config.no_trade.daily:
        start, end = minutes_of_day(window)
        inside = start <= minute < end if start < end else minute >= start or minute < end
        if inside:
            return True
    for begin, finish in config.no_trade.ranges:
        if begin.timestamp() * 1000 <= ts_ms < finish.timestamp() * 1000:
            return True
    near = config.no_trade.around_funding_minutes
    since = minute % _FUNDING_MINUTES
    return near > 0 and min(since, _FUNDING_MINUTES - since) <= near


def _price_decimals(rows: tuple[Row, ...], tick: Decimal, symbol: str) -> int:
    needed = decimals(tick)
    for row in rows:
        most = max(decimals(price) for price in row.prices)
        if most > MOST_DECIMALS:
            raise DataError(
                "engine-limit",
                wrong=f"prices for Nautilus must have at most {MOST_DECIMALS} decimals",
                found=f"{most} in {symbol} at {iso(row.ts_ms)}",
                remedy="Round the bars to the exchange's tick before they are imported.",
            )
        needed = max(needed, most)
    return needed
