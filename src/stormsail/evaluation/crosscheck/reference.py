"""The reference ledger: the market's rules once more, for one account, in plain Decimals.

An independent second implementation, against which the simulator and the backtest are checked.
Slow, short and exact. Money (cash, equity, fees, funding, every identity) is summed and multiplied
in a context that refuses to round. Only what the rules define by a division or a root is rounded,
once, before it touches money, and against the account:

- quantity: down, to the lot, or to 1e-24 without one;
- impact: up, to 1e-24 of the open; without a tick the price that follows is exact;
- price of a liquidation inside a bar: 36 digits, down for a long, up for a short;
- interest on what is borrowed: up, to 1e-24;
- weights, turnover, entry price, thresholds of the gate: 60 digits; none of them is money.

So each quantity, price and rate has a bounded number of decimals, and cash never gains more of
them, however long the run. The numbers of the configuration are taken as they are written (0.0005
is five ten-thousandths); `reference_bars` takes the data as they are stored, Decimal(double).
"""

import decimal
import math
from collections.abc import Iterator, Sequence
from decimal import Decimal, localcontext
from typing import TYPE_CHECKING, NamedTuple

from stormsail.core.errors import RangeError, ShapeError
from stormsail.evaluation.crosscheck.reference_account import (
    EXACT,
    ONE,
    RATIO,
    RATIO_DOWN,
    RATIO_UP,
    ZERO,
    Account,
    on_grid,
    written,
)
from stormsail.evaluation.crosscheck.reference_gate import (
    DAY_MS,
    GateInputs,
    NoTradeTimes,
    Reason,
    ReferenceLimits,
    reference_gate,
    same_day,
)

if TYPE_CHECKING:
    from stormsail.market.panel import Panel
    from stormsail.market.simulator.config import MarketConfig

_DUST = Decimal("1e-12")
"""A gap of this share of the position is rounding and not an order."""

_QUANTUM = Decimal("1e-24")
_YEAR_MS = Decimal(365 * 24 * 60 * 60 * 1000)
_FLOOR = decimal.Context(prec=36, rounding=decimal.ROUND_FLOOR)
_CEILING = decimal.Context(prec=36, rounding=decimal.ROUND_CEILING)
_LOG = decimal.Context(prec=30)
_NAN = Decimal("NaN")


class ReferenceBar(NamedTuple):
    """Row n, at whose open the order fills and at whose close the account is marked."""

    ts_ms: int
    """Open time of row n, UTC milliseconds."""
    open: Decimal
    high: Decimal
    low: Decimal
    close: Decimal
    tradable: bool = True
    """Whether row n has a bar."""
    funding_rate: Decimal = ZERO
    """Sum of the rates that settle after the open of row n - 1 and up to the open of row n."""
    trailing_notional: Decimal = ZERO
    """M of row n - 1, the newest one known at the decision: mean notional of the rows up to it."""
    volume: Decimal = ONE
    """What was traded in row n, in base currency."""
    delisted: bool = False
    """Whether the symbol was last traded in row n - 1."""
    rates_missing: int = 0
    """Settlements at row n whose rate is not known."""
    mark_open: Decimal | None = None
    """Open of the mark price in row n, if there is one; so high and low."""
    mark_high: Decimal | None = None
    mark_low: Decimal | None = None


class Record(NamedTuple):
    """What one step did. Amounts in quote currency, positive where the account pays."""

    ts_ms: int
    equity: Decimal
    cash: Decimal
    quantity: Decimal
    entry_price: Decimal
    weight: Decimal
    """Position over equity at the mark; NaN if the equity is 0."""
    price: Decimal | None
    """Price of the fill, None without one; a liquidation is no fill here."""
    traded: Decimal
    """Signed quantity of the fill."""
    fee_total: Decimal
    """Fee of the fill and of a liquidation."""
    slippage: Decimal
    funding: Decimal
    turnover: Decimal
    liquidated: bool
    liquidation_price: Decimal | None
    """Price at which a liquidation or a delisting took the position."""
    delisted: bool
    blocked: bool
    """An order was wanted, and not allowed to go out at this row."""
    reason: Reason
    reward_raw_fraction: float
    reward_used_fraction: float
    reward_costs_fraction: float
    signal_pos_requested: Decimal | None
    signal_pos_next: Decimal
    """Weight at the open, after the fill and before anything that happens inside the bar."""
    sample_weight: float
    terminated: bool
    truncated: bool


class Fill(NamedTuple):
    """One order that was filled."""

    traded: Decimal
    price: Decimal
    fee: Decimal
    turnover: Decimal


class _BarEvents(NamedTuple):
    """What happened between a decision and the mark."""

    reason: Reason
    funding: Decimal
    blocked: bool
    fill: Fill | None
    weight_after: Decimal
    liquidation_price: Decimal | None
    settled: bool
    """Whether that is the price of a delisting."""


class ReferenceLedger:
    """One account trading one symbol for one episode.

    Step 12 of the rules, the restart, is a new ledger with its own multipliers.

    Args:
        config: the market; its `randomise`, `degrade`, `features` and actions on offer are not
            read: the multipliers are arguments, and an action that is not on offer comes as None.
        symbol: decides which filters apply.
        first_ts_ms: open time of the row at whose close the first decision falls.
        first_close: that close.
        episode_bars: steps until truncation; None takes the configuration's. Pass fewer where
            the data end before.
        fee_multiplier: of the episode, on the taker fee.
        half_spread_multiplier: of the episode, on the half spread.
        impact_multiplier: of the episode, on the impact.

    Raises:
        decimal.Inexact: later, by a step, if its numbers have so many digits (some thousands of
            decimals) that money would have to be rounded.
    """

    def __init__(
        self,
        config: "MarketConfig",
        *,
        symbol: str,
        first_ts_ms: int,
        first_close: Decimal,
        episode_bars: int | None = None,
        fee_multiplier: Decimal = ONE,
        half_spread_multiplier: Decimal = ONE,
        impact_multiplier: Decimal = ONE,
    ) -> None:
        filters = config.filters_of(symbol)
        self._lot, self._tick = written(filters.lot), written(filters.tick)
        self._min_notional = written(filters.min_notional)
        with localcontext(EXACT):
            self._fee = written(config.fee_of(symbol)) * fee_multiplier
            self._half_spread = written(config.costs.half_spread) * half_spread_multiplier
            self._impact = written(config.costs.impact) * impact_multiplier
            self._liquidation_fee = self._fee + written(config.margin.liquidation_fee)
            initial = written(config.initial_equity)
            self._floor = written(config.stops.equity_floor) * initial
        self._delisting_loss = written(config.delisting.loss)
        self._tiers = [
            (written(tier.notional), written(tier.rate)) for tier in config.maintenance_of(symbol)
        ]
        self._base_interest, self._quote_interest = map(written, config.borrow_of(symbol))
        self._min_rebalance = written(config.min_rebalance)
        drawdown = config.stops.drawdown
        self._stop_drawdown = None if drawdown is None else written(drawdown)
        self._limits = ReferenceLimits.of(config.limits)
        self._closed = NoTradeTimes(config.no_trade)
        self._config = config
        self._steps_left = config.episode_bars if episode_bars is None else episode_bars
        self._ts_ms = first_ts_ms
        self._peak = self._day_start = initial
        self._day_turnover = ZERO
        self.account = Account(initial, first_close)
        self.ended = False

    def check_identity(self) -> None:
        """Check the sums of the account; see `Account.check_identity`."""
        self.account.check_identity()

    def step(self, bar: ReferenceBar, weight: Decimal | None) -> Record:
        """Decide at the close of the row before, fill at the open of `bar`, mark at its close.

        Args:
            bar: row n.
            weight: target weight; None or a number that is not finite keeps the position, as far
                as the gate lets it.

        Raises:
            RangeError: if the episode has ended.
        """
        if self.ended:
            raise RangeError(
                wrong="an episode that has ended must take no further step",
                found=f"a bar at {bar.ts_ms} ms",
                remedy="Start a new `ReferenceLedger` for the next episode.",
            )
        with localcontext(EXACT):
            return self._step(bar, weight)

    def _step(self, bar: ReferenceBar, weight: Decimal | None) -> Record:
        account, before = self.account, self.account.equity
        fees, slippage = account.fees, account.slippage
        events = self._trade(bar, weight)
        account.move(bar.close)
        self._ts_ms = bar.ts_ms
        self._peak = max(self._peak, account.equity)
        terminated, truncated = self._end(delisted=bar.delisted)
        raw, used = self._reward(before)
        fee_total, slippage = account.fees - fees, account.slippage - slippage
        costs = fee_total + slippage + events.funding
        fill, dropped = events.fill, events.blocked and self._config.no_trade.drop_samples
        return Record(
            ts_ms=bar.ts_ms,
            equity=account.equity,
            cash=account.cash,
            quantity=account.quantity,
            entry_price=account.entry_price,
            weight=_share(account.quantity * account.mark, account.equity),
            price=fill.price if fill else None,
            traded=fill.traded if fill else ZERO,
            fee_total=fee_total,
            slippage=slippage,
            funding=events.funding,
            turnover=fill.turnover if fill else ZERO,
            liquidated=events.liquidation_price is not None and not events.settled,
            liquidation_price=events.liquidation_price,
            delisted=bar.delisted,
            blocked=events.blocked,
            reason=events.reason,
            reward_raw_fraction=raw,
            reward_used_fraction=used,
            reward_costs_fraction=float(RATIO.divide(costs, before)),
            signal_pos_requested=weight,
            signal_pos_next=events.weight_after,
            sample_weight=0.0 if dropped else 1.0,
            terminated=terminated,
            truncated=truncated,
        )

    def _trade(self, bar: ReferenceBar, weight: Decimal | None) -> _BarEvents:
        """Do everything from the decision to the bar's worst price: steps 1 to 8 of the rules."""
        account, before = self.account, self.account.equity
        last_traded = account.mark
        if not same_day(bar.ts_ms, self._ts_ms):
            self._day_start, self._day_turnover = before, ZERO
        held = RATIO.divide(account.quantity * account.mark, before)
        inputs = GateInputs(held, before, self._peak, self._day_start, self._day_turnover)
        allowed, reason = reference_gate(weight, inputs, self._limits)

        account.move(bar.open)
        funding = account.quantity * bar.open * self._rate(bar) + self._interest(bar)
        account.pay_funding(funding)
        watched = bar.open if bar.mark_open is None else bar.mark_open
        lost_at = self._liquidate(self._worse_open(bar)) if self._margin_gone(watched) else None
        holds = allowed == held and reason is not Reason.NONE
        wanted = lost_at is None and not holds
        size = self._size(bar, allowed) if wanted else ZERO
        buy = allowed * account.equity > account.quantity * bar.open
        price = self._price(bar, size, buy=buy)
        blocked = size != 0 and (self._is_blocked(bar) or price <= 0)
        fill = None if blocked or size == 0 else self._filled(bar, size, price, buy=buy)
        settled = bar.delisted and account.quantity != 0
        if settled:
            lost_at = self._settle(bar, last_traded)
        weight_after = _share(account.quantity * bar.open, account.equity)
        if lost_at is None:
            lost_at = self._liquidate_inside(bar)
        return _BarEvents(reason, funding, blocked, fill, weight_after, lost_at, settled)

    def _rate(self, bar: ReferenceBar) -> Decimal:
        """Return the rate that is paid, with the one assumed where none is known."""
        if not self._config.funding:
            return ZERO
        assumed = self._config.funding_missing
        extra = ZERO if isinstance(assumed, str) else written(assumed) * bar.rates_missing
        return bar.funding_rate + extra

    def _worse_open(self, bar: ReferenceBar) -> Decimal:
        """Return the open, or that of the mark where the position would bring less there."""
        if bar.mark_open is None:
            return bar.open
        pair = (bar.open, bar.mark_open)
        return min(pair) if self.account.quantity > 0 else max(pair)

    def _interest(self, bar: ReferenceBar) -> Decimal:
        """Return what the loans since the row before cost: coins sold short, and money owed."""
        account, held_ms = self.account, bar.ts_ms - self._ts_ms
        yearly = ZERO
        if account.quantity < 0:
            yearly += -account.quantity * bar.open * self._base_interest
        if account.cash < 0:
            yearly += -account.cash * self._quote_interest
        interest = RATIO_UP.divide(yearly * held_ms, _YEAR_MS)
        return interest.quantize(_QUANTUM, context=RATIO_UP)

    def _is_blocked(self, bar: ReferenceBar) -> bool:
        frozen = bar.volume == 0 and not self._config.trade_without_volume
        unknown_impact = self._impact > 0 and bar.trailing_notional == 0
        insolvent = self.account.equity <= 0
        shut = not bar.tradable or frozen or bar.delisted or bar.ts_ms in self._closed
        return shut or unknown_impact or insolvent

    def _filled(
        self, bar: ReferenceBar, size: Decimal, price: Decimal, *, buy: bool
    ) -> Fill | None:
        """Fill an order, unless it is worth less than the least that can be sent."""
        account, equity = self.account, self.account.equity
        if size * price < self._min_notional:
            return None
        fill = Fill(
            traded=size if buy else -size,
            price=price,
            fee=self._fee * size * price,
            turnover=RATIO.divide(size * bar.open, equity),
        )
        account.fill(fill.traded, price, fill.fee)
        account.slippage += size * abs(price - bar.open)
        self._day_turnover = RATIO.add(self._day_turnover, fill.turnover)
        return fill

    def _size(self, bar: ReferenceBar, weight: Decimal) -> Decimal:
        """Return the unsigned quantity, with the costs of its own fill reserved."""
        equity, quantity = self.account.equity, self.account.quantity
        gap = weight * equity - quantity * bar.open
        if weight != 0 and (
            abs(gap) <= _DUST * abs(quantity) * bar.open or abs(gap) < self._min_rebalance * equity
        ):
            return ZERO
        if weight == 0:
            size = abs(quantity)
        else:
            side = ONE.copy_sign(gap)
            slip = self._half_spread + self._impact_share(abs(gap), bar)
            slip += RATIO_UP.divide(self._tick, bar.open)
            rate = slip + self._fee * (1 + side * slip)
            whole = 1 + side * weight * rate
            if whole <= 0:  # the costs are more than the trade is worth
                return ZERO
            size = RATIO_DOWN.divide(RATIO_DOWN.divide(abs(gap), whole), bar.open)
            if side * weight < 0:  # reducing never turns the position
                size = min(size, abs(quantity))
        if self._lot > 0:
            return on_grid(size, self._lot, up=False)
        return size if weight == 0 else size.quantize(_QUANTUM, context=RATIO_DOWN)

    def _price(self, bar: ReferenceBar, size: Decimal, *, buy: bool) -> Decimal:
        slip = self._half_spread + self._impact_share(size * bar.open, bar)
        price = bar.open * (1 + slip if buy else 1 - slip)
        return on_grid(price, self._tick, up=buy) if self._tick > 0 else price

    def _impact_share(self, notional: Decimal, bar: ReferenceBar) -> Decimal:
        if self._impact == 0 or bar.trailing_notional == 0:
            return ZERO
        root = RATIO_UP.sqrt(RATIO_UP.divide(notional, bar.trailing_notional))
        return RATIO_UP.multiply(self._impact, root).quantize(_QUANTUM, context=RATIO_UP)

    def _liquidate_inside(self, bar: ReferenceBar) -> Decimal | None:
        """Take the position away where the margin ran out between open and the worst price."""
        cash, quantity = self.account.cash, self.account.quantity
        low = bar.low if bar.mark_low is None else bar.mark_low
        high = bar.high if bar.mark_high is None else bar.mark_high
        if not self._margin_gone(low if quantity > 0 else high):
            return None
        if quantity > 0:
            for bound, rate, below in self._brackets():
                # cash + worth = below + rate (worth - bound), and the worth lies in this bracket
                price = _FLOOR.divide(below - rate * bound - cash, quantity * (1 - rate))
                if quantity * price <= self._above(bound):
                    break
            return self._liquidate(min(price, self._worse_open(bar)))
        for bound, rate, below in self._brackets():
            price = _CEILING.divide(cash - below + rate * bound, -quantity * (1 + rate))
            if -quantity * price <= self._above(bound):
                break
        return self._liquidate(max(price, self._worse_open(bar)))

    def _brackets(self) -> Iterator[tuple[Decimal, Decimal, Decimal]]:
        """Yield the bound and rate of each tier, and the margin of all below it."""
        below, last_bound, last_rate = ZERO, ZERO, ZERO
        for bound, rate in self._tiers:
            below += last_rate * (bound - last_bound)
            yield bound, rate, below
            last_bound, last_rate = bound, rate

    def _above(self, bound: Decimal) -> Decimal:
        """Return the bound of the next tier."""
        higher = [other for other, _ in self._tiers if other > bound]
        return min(higher, default=Decimal("Infinity"))

    def _margin_gone(self, price: Decimal) -> bool:
        cash, quantity = self.account.cash, self.account.quantity
        worth, margin = abs(quantity) * price, ZERO
        for bound, rate in self._tiers:
            margin += rate * max(min(worth, self._above(bound)) - bound, ZERO)
        return quantity != 0 and cash + quantity * price <= margin

    def _liquidate(self, price: Decimal) -> Decimal:
        quantity = self.account.quantity
        self.account.move(price)
        self.account.fill(-quantity, price, self._liquidation_fee * abs(quantity) * price)
        return price

    def _settle(self, bar: ReferenceBar, price: Decimal) -> Decimal:
        """Close the position in a delisted symbol, without a fee; return the price."""
        account, quantity = self.account, self.account.quantity
        slip = self._half_spread + self._impact_share(abs(quantity) * price, bar)
        lost = min(max(slip, self._delisting_loss), ONE)
        paid = price * (1 - ONE.copy_sign(quantity) * lost)
        account.move(paid)
        account.fill(-quantity, paid, ZERO)
        account.slippage += abs(quantity) * abs(paid - price)
        return paid

    def _end(self, *, delisted: bool) -> tuple[bool, bool]:
        equity, peak = self.account.equity, self._peak
        self._steps_left -= 1
        stop = self._stop_drawdown
        fell = stop is not None and peak - equity >= stop * peak
        terminated = equity <= self._floor or fell or delisted
        self.ended = terminated or self._steps_left <= 0
        return terminated, self.ended and not terminated

    def _reward(self, before: Decimal) -> tuple[float, float]:
        """Return the log growth of the equity, as it is and clipped."""
        after = self.account.equity
        ratio = _LOG.divide(max(after, self._floor), max(before, self._floor))
        raw = float(_LOG.ln(ratio))
        if after <= self._floor:
            raw -= self._config.ruin_penalty
        clip = self._config.reward_clip
        return raw, raw if clip is None else max(-clip, min(raw, clip))


def _share(part: Decimal, whole: Decimal) -> Decimal:
    return _NAN if whole == 0 else RATIO.divide(part, whole)


def replay(
    config: "MarketConfig",
    bars: Sequence[ReferenceBar],
    weights: Sequence[Decimal | None],
    *,
    symbol: str,
    fee_multiplier: Decimal = ONE,
    half_spread_multiplier: Decimal = ONE,
    impact_multiplier: Decimal = ONE,
) -> list[Record]:
    """Return the records of one episode that starts at the first row, up to its end.

    `weights[i]` is decided at the close of `bars[i]` and fills at the open of `bars[i + 1]`. The
    episode ends by the configuration's rules or with the last bar. Every step is checked.

    Raises:
        ShapeError: if there is not one weight fewer than there are bars.
        InvariantError: if money appeared or vanished.
    """
    if len(weights) != len(bars) - 1:
        raise ShapeError(
            wrong="`weights` must have one element fewer than `bars`",
            found=f"{len(weights)} weights and {len(bars)} bars",
            remedy="Leave out the weight of the last row; its order would fill after the data.",
        )
    ledger = ReferenceLedger(
        config,
        symbol=symbol,
        first_ts_ms=bars[0].ts_ms,
        first_close=bars[0].close,
        episode_bars=min(config.episode_bars, len(weights)),
        fee_multiplier=fee_multiplier,
        half_spread_multiplier=half_spread_multiplier,
        impact_multiplier=impact_multiplier,
    )
    records = []
    for bar, weight in zip(bars[1:], weights, strict=True):
        records.append(ledger.step(bar, weight))
        ledger.check_identity()
        if ledger.ended:
            break
    return records


def trailing_notional(
    closes: Sequence[Decimal], volumes: Sequence[Decimal], window: int
) -> list[Decimal]:
    """Return for each row the mean of close times volume over the last `window` rows up to it.

    At the start it is the mean of the rows there are. For a quote volume pass ones as closes.
    """
    with localcontext(EXACT):
        notional = [close * volume for close, volume in zip(closes, volumes, strict=True)]
        means, total = [], ZERO
        for row, newest in enumerate(notional):
            total += newest - (notional[row - window] if row >= window else ZERO)
            means.append(RATIO.divide(total, Decimal(min(row + 1, window))))
    return means


def _marked(bar: ReferenceBar, mark: Sequence[float]) -> ReferenceBar:
    opened, high, low = (Decimal(price) for price in mark)
    return bar._replace(mark_open=opened, mark_high=high, mark_low=low)


def reference_bars(
    panel: "Panel",
    symbol: str,
    *,
    impact_window: int,
    silent_days: float = 7.0,
    trade_without_volume: bool = False,
) -> list[ReferenceBar]:
    """Return the rows of one symbol, each number the exact value of the double in the panel.

    The trailing notional of a row is that of the row before it, over the bars that the symbol has
    had; up to the first of them, at which no order can fill, it is 0. A symbol is delisted in the
    row after its last traded one, if the panel goes on for `silent_days` from there.
    """
    column = panel.index(symbol)

    def exact(name: str) -> list[Decimal]:
        tensor = panel.optional[name] if name in panel.optional else getattr(panel, name)
        return [Decimal(value) for value in tensor[:, column].tolist()]

    closes = exact("close")
    first = panel.listed[:, column].tolist().index(True)  # before its first bar nothing was traded
    if "quote_volume" in panel.optional:
        priced, volumes = [ONE] * len(closes), exact("quote_volume")
    else:
        priced, volumes = closes, exact("volume")
    traded = [ZERO] * first + trailing_notional(priced[first:], volumes[first:], impact_window)
    columns = zip(
        panel.ts.tolist(),
        exact("open"),
        exact("high"),
        exact("low"),
        closes,
        panel.tradable[:, column].tolist(),
        exact("funding"),
        [ZERO, *traded[:-1]],
        exact("volume"),
        strict=True,
    )
    bars = [ReferenceBar(*row) for row in columns]
    alive = [
        number
        for number, bar in enumerate(bars)
        if bar.tradable and (trade_without_volume or bar.volume > 0)
    ]
    if panel.rates_missing is not None:
        missing = panel.rates_missing[:, column].tolist()
        pairs = zip(bars, missing, strict=True)
        bars = [bar._replace(rates_missing=count) for bar, count in pairs]
    if panel.mark is not None:
        marks = zip(bars, panel.mark[:, column].tolist(), strict=True)
        bars = [bar if math.isnan(mark[0]) else _marked(bar, mark) for bar, mark in marks]
    if alive and bars[-1].ts_ms - bars[alive[-1]].ts_ms >= silent_days * DAY_MS:
        bars[alive[-1] + 1] = bars[alive[-1] + 1]._replace(delisted=True)
    return bars
