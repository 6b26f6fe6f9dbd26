"""The order gate: the last limits before an exchange, at the one place that sends orders.

`functional.risk_gate` has cut the weight, as in training and in the backtest; what is left are the
limits that only an order has. An order that breaks one is refused whole: the gate never reshapes
it. Whatever lowers a position, without turning it, passes the limits on size, loss and leverage,
because the way out must stay open.

| # | limit | refuses |
|---|---|---|
| 1 | `number` | quantities and prices that are not finite and positive |
| 2 | `filter` | steps, least and largest quantity, least notional of the market |
| 3 | `collar` | prices too far from a fresh mid; any order without one |
| 4 | `order-notional` | one order too large |
| 5 | `position` | a position too large |
| 6 | `gross` | positions too large together |
| 7 | `leverage` | positions too large for the equity |
| 8 | `order-rate` | too many orders a minute |
| 9 | `message-rate` | too many requests that change something a minute |
| 10 | `daily-loss` | anything but reducing after a loss since the UTC day began |
| 11 | `drawdown` | anything but reducing below the peak |
| 12 | `stale-data` | decisions on bars that are too old |
| 13 | `symbol` | symbols that are not on the list, or do not trade |
| 14 | `repeat` | the same order again and again |

Exposure counts what may be filled as filled: an order without an answer, and one that still rests.

What the market takes only in parts is proposed in parts, and judged as one: all of them pass, or
none is sent. They are one order to limits 4 and 14, and as many as they are to 8 and 9; each is
sent once the one before it was taken.

Orders of one symbol are sent one after the other, side by side with those of other symbols: the
stop of a position to come, what closes the old position, what opens the new one. What opens is
sent from flat alone, so that a stop that fires in between cannot make it larger than was decided.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from itertools import groupby
from typing import Literal, NamedTuple

from stormsail.core.clock import Clock
from stormsail.core.errors import InvariantError, VenueError
from stormsail.execution.journal import Journal
from stormsail.execution.kill_switch import KillSwitch
from stormsail.execution.order_ids import Leg
from stormsail.execution.order_limits import Bounds
from stormsail.execution.venue import (
    ZERO,
    Accepted,
    Market,
    OrderRequest,
    Outcome,
    Refused,
    Unknown,
    Venue,
)

TradingState = Literal["ACTIVE", "REDUCING", "HALTED"]
"""All orders; those that lower a position; none but the way out."""

Limit = Literal[
    "number", "filter", "collar", "order-notional", "position", "gross", "leverage", "order-rate",
    "message-rate", "daily-loss", "drawdown", "stale-data", "symbol", "repeat", "state",
]  # fmt: skip
"""Names of the limits, and `state`: reducing or halted."""

_MINUTE_MS = 60_000
NOT_SENT = "not-sent"


@dataclass(frozen=True, slots=True)
class MarketView:
    """What the gate knows of one symbol now.

    Attributes:
        market: rules as the venue stated them last.
        mid: fresh price; None where there is none.
        mid_age_ms: its age.
        data_age_bars: age of the newest closed bar, counted from its close, in bars.
    """

    market: Market
    mid: Decimal | None
    mid_age_ms: float
    data_age_bars: float


class Exposure(NamedTuple):
    """Range in which a position lies, with all that may have been filled or may still be."""

    low: Decimal
    high: Decimal

    @property
    def largest(self) -> Decimal:
        """The larger size of the two ends."""
        return max(abs(self.low), abs(self.high))

    def after(self, change: Decimal) -> "Exposure":
        """Return the range with one more order that may be filled or not."""
        return Exposure(min(self.low, self.low + change), max(self.high, self.high + change))


@dataclass(frozen=True, slots=True)
class AccountView:
    """What the gate knows of the account: money in quote currency, exposures by symbol."""

    equity: Decimal
    peak: Decimal
    day_start: Decimal
    exposures: Mapping[str, Exposure]
    prices: Mapping[str, Decimal]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an order does not pass."""

    limit: Limit
    words: str


@dataclass(frozen=True)
class Proposal:
    """An order that wants to be sent.

    Proposals of one symbol and leg that follow each other are parts of one order.

    Attributes:
        bar_ms, leg, number: of its key, for the journal.
        reference: price at which it was sized.
    """

    request: OrderRequest
    bar_ms: int
    leg: Leg
    number: int
    reference: Decimal


class _Part(NamedTuple):
    """Place of an order among the parts of a larger one.

    Attributes:
        before: parts that are sent before it.
        whole: quantity of all of them.
    """

    before: int
    whole: Decimal


@dataclass
class _Rates:
    """Times of the last orders and messages, in milliseconds."""

    orders: deque[float] = field(default_factory=deque)
    messages: deque[float] = field(default_factory=deque)
    same: dict[tuple[str, str], deque[float]] = field(default_factory=dict)


class OrderGate:
    """Checks orders, puts them on disk, and sends them: the only place that does.

    Args:
        venue: where they go.
        journal: where the intent stands before.
        kill_switch: looked at last of all.
        bounds: limits in numbers.
        symbols: that may be traded.
        clock: durations are measured by it.
    """

    def __init__(
        self,
        venue: Venue,
        journal: Journal,
        kill_switch: KillSwitch,
        bounds: Bounds,
        symbols: Sequence[str],
        clock: Clock,
    ) -> None:
        self._venue, self._journal, self._switch = venue, journal, kill_switch
        self._bounds, self._clock = bounds, clock
        self._symbols = frozenset(symbols)
        self._rates = _Rates()
        self._reducing: dict[str, str] = {}
        self.ready = False

    @property
    def state(self) -> TradingState:
        """What may be sent. HALTED is the kill switch, and lasts until a person re-arms it."""
        if self._switch.tripped():
            return "HALTED"
        return "REDUCING" if self._reducing else "ACTIVE"

    @property
    def quote_age_s(self) -> float:
        """Oldest price by which an order may be judged."""
        return self._bounds.quote_age_ms / 1000.0

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why only reducing is allowed, by name."""
        return dict(self._reducing)

    def reduce_only(self, name: str, words: str) -> None:
        """Allow reducing orders only, until `lift` is called with the same name."""
        self._reducing[name] = words

    def lift(self, name: str) -> None:
        """Take back one reason for reducing; HALTED is not touched."""
        self._reducing.pop(name, None)

    def check(self, proposal: Proposal, view: MarketView, account: AccountView) -> Refusal | None:
        """Return why an order must not be sent, or None where it may."""
        part = _Part(0, proposal.request.quantity)
        return self._check(proposal, view, account, self._now_ms(), self.state, part)

    def _check(
        self, proposal: Proposal, view: MarketView, account: AccountView, now: float,
        state: TradingState, part: _Part,
    ) -> Refusal | None:  # fmt: skip
        request = proposal.request
        refusal = (
            self._number(request)
            or self._symbol(request, view)
            or self._collar(request, view)  # from here on there is a price
            or self._filter(request, view)
        )
        if refusal is not None:
            return refusal
        exposure = account.exposures.get(request.symbol, _FLAT)
        signed = request.quantity if request.side == "buy" else -request.quantity
        reduces = _reduces(exposure, signed)
        if proposal.leg != "target":
            # a stop that may only reduce can stand before the position that it protects
            if reduces or (proposal.leg == "stop" and request.reduce_only):
                return None
            return Refusal("state", f"a {proposal.leg} order must lower a position")
        if state == "HALTED" or (state == "REDUCING" and not reduces):
            return Refusal("state", f"trading is {state}")
        if view.data_age_bars > self._bounds.data_age_bars:  # of what the agent has decided on
            return Refusal("stale-data", f"the newest bar closed {view.data_age_bars:.2f} bars ago")
        refusal = self._rate(request, now, part)
        if refusal is None and not reduces:
            refusal = self._size(request, signed, view, account, part) or self._loss(account)
        return refusal

    def _number(self, request: OrderRequest) -> Refusal | None:
        for name in ("quantity", "price", "stop_price"):
            number = getattr(request, name)
            if number is None:
                continue
            if not (isinstance(number, Decimal) and number.is_finite() and number > 0):
                return Refusal("number", f"`{name}` must be finite and positive, not {number}")
        return None

    def _symbol(self, request: OrderRequest, view: MarketView) -> Refusal | None:
        if request.symbol not in self._symbols or view.market.symbol != request.symbol:
            return Refusal("symbol", f"{request.symbol} is not on the list of symbols")
        if view.market.status != "trading":
            return Refusal("symbol", f"{request.symbol} is {view.market.status}")
        return None

    def _filter(self, request: OrderRequest, view: MarketView) -> Refusal | None:
        market, quantity = view.market, request.quantity
        lot, least, most = market.sizes(request.type)
        if lot and quantity % lot:
            return Refusal("filter", f"{quantity} is no multiple of the lot {lot}")
        if quantity < least or (most and quantity > most):
            return Refusal("filter", f"{quantity} is out of {least} to {most or 'any'}")
        for price in (request.price, request.stop_price):
            if price is not None and market.tick and price % market.tick:
                return Refusal("filter", f"{price} is no multiple of the tick {market.tick}")
        price = request.price or request.stop_price or view.mid
        if request.reduce_only:  # markets of perpetuals let the rest of a position go
            return None
        if price is not None and quantity * price < market.min_notional:
            return Refusal("filter", f"{quantity * price} is less than {market.min_notional}")
        return None

    def _collar(self, request: OrderRequest, view: MarketView) -> Refusal | None:
        mid = view.mid
        if mid is None or not mid.is_finite() or mid <= 0:
            return Refusal("collar", "no price to compare with")
        if not view.mid_age_ms <= self._bounds.quote_age_ms:
            return Refusal("collar", f"the newest price is {view.mid_age_ms:.0f} ms old")
        if request.price is not None and abs(request.price - mid) > self._bounds.collar * mid:
            return Refusal("collar", f"{request.price} is too far from {mid}")
        if request.stop_price is not None:
            above = request.stop_price > mid
            if above != (request.side == "buy"):
                return Refusal("collar", f"a stop at {request.stop_price} would trigger at {mid}")
        return None

    def _rate(self, request: OrderRequest, now: float, part: _Part) -> Refusal | None:
        rates, bounds, since = self._rates, self._bounds, now - _MINUTE_MS
        if _count(rates.orders, since) + part.before >= bounds.orders:
            return Refusal("order-rate", f"{bounds.orders} orders in a minute")
        if _count(rates.messages, since) + part.before >= bounds.messages:
            return Refusal("message-rate", f"{bounds.messages} messages in a minute")
        same = rates.same.get((request.symbol, request.side))
        if same is not None and _count(same, now - bounds.repeat_ms) >= bounds.repeats:
            return Refusal("repeat", f"{bounds.repeats} such orders in a short time")
        return None

    def _size(
        self, request: OrderRequest, signed: Decimal, view: MarketView, account: AccountView,
        part: _Part,
    ) -> Refusal | None:  # fmt: skip
        bounds, price = self._bounds, request.price or view.mid
        if price is None:
            return Refusal("collar", "no price to compare with")
        if part.whole * price > bounds.order:
            return Refusal("order-notional", f"{part.whole * price} in one order")
        held = account.exposures.get(request.symbol, _FLAT)
        after = max(abs(held.low + signed), abs(held.high + signed), held.largest) * price
        if max(abs(held.low + signed), abs(held.high + signed)) * price > bounds.position:
            return Refusal("position", f"a position of {after}")
        gross = after
        for symbol, exposure in account.exposures.items():
            if symbol == request.symbol or not exposure.largest:
                continue
            other = account.prices.get(symbol)
            if other is None:
                return Refusal("gross", f"no price of {symbol}, which is held")
            gross += exposure.largest * other
        if gross > bounds.gross:
            return Refusal("gross", f"a gross exposure of {gross}")
        if not account.equity.is_finite() or gross > bounds.leverage * account.equity:
            return Refusal("leverage", f"a gross exposure of {gross} on {account.equity}")
        return None

    def _loss(self, account: AccountView) -> Refusal | None:
        bounds = self._bounds
        for limit, share, start in (
            ("daily-loss", bounds.daily_loss, account.day_start),
            ("drawdown", bounds.drawdown, account.peak),
        ):
            known = start.is_finite() and start > 0 and account.equity.is_finite()
            if not (known and start - account.equity < share * start):
                words = f"an equity of {account.equity:.2f} after {start:.2f}"
                return Refusal(limit, words)  # type: ignore[arg-type]
        return None

    def send(
        self,
        proposals: Sequence[Proposal],
        views: Mapping[str, MarketView],
        account: AccountView,
        *,
        before: Callable[[Sequence[Refusal | None]], None] | None = None,
    ) -> list[Outcome]:
        """Check orders, put those that pass on disk as one, then send each once.

        Symbols are sent side by side where the venue can, and none waits for another's answer;
        orders of one symbol are sent one after the other, and so are parts of one order.

        Args:
            proposals: in the order in which they are judged; later ones see earlier ones as filled.
                Parts of one order stand together, the stop of a position to come before its order.
            views: by symbol.
            account: before any of them.
            before: called inside the transaction of the intents with the refusal of each, to write
                what belongs to them.

        Returns:
            One outcome for each; `Refused` with the code `gate:LIMIT` where the gate refused.

        Raises:
            InvariantError: if the account is not reconciled yet.
        """
        if not self.ready:
            raise InvariantError(
                "not-reconciled",
                wrong="the account must be reconciled before the first order",
                found=f"{len(proposals)} orders",
                remedy="This is a bug of the package; nothing was sent.",
            )
        refusals = self._refusals(proposals, views, account)
        wall = self._clock.now_ns() // 1_000_000
        with self._journal.transaction():
            if before is not None:
                before(refusals)
            known = [
                refusal is not None or not self._intended(proposal, wall)
                for proposal, refusal in zip(proposals, refusals, strict=True)
            ]
        by_symbol: dict[str, list[int]] = {}
        for place, (proposal, here) in enumerate(zip(proposals, known, strict=True)):
            if not here:
                by_symbol.setdefault(proposal.request.symbol, []).append(place)
        # those that take longest first: nobody waits for them alone at the end
        chains = sorted(by_symbol.items(), key=lambda own: -len(own[1]))
        sent = self._venue.at_once(
            [
                partial(self._submitted, [proposals[place] for place in places], views[symbol])
                for symbol, places in chains
            ]
        )
        outcomes: list[Outcome] = [_not_sent(refusal) for refusal in refusals]
        for (_, places), answers in zip(chains, sent, strict=True):
            for place, answer in zip(places, answers, strict=True):
                outcomes[place] = answer
        wall = self._clock.now_ns() // 1_000_000
        with self._journal.transaction():
            for proposal, outcome, here in zip(proposals, outcomes, known, strict=True):
                if not here:
                    client_id = proposal.request.client_id
                    self._journal.add_outcome(client_id, outcome, now_ms=wall)
        return outcomes

    def _refusals(
        self,
        proposals: Sequence[Proposal],
        views: Mapping[str, MarketView],
        account: AccountView,
    ) -> list[Refusal | None]:
        """Return why each order must not be sent; those that may are counted.

        A stop of which the order is refused is refused with it, and so is what opens a position
        where the order that closes the old one is refused.
        """
        now, state = self._now_ms(), self.state
        refusals: list[Refusal | None] = []
        refused: dict[str, Refusal] = {}
        for (symbol, leg, _), group in groupby(proposals, key=_order_of):
            parts = list(group)
            refusal = refused.get(symbol) if leg == "target" else None
            if refusal is None:
                refusal = self._judged(parts, views[symbol], account, now, state)
            refusals += [refusal] * len(parts)
            if refusal is None:
                account = account if leg == "stop" else _with(account, parts)
                self._counted(parts, now)
            elif leg == "target":
                refused[symbol] = refusal
        return [
            refused.get(proposal.request.symbol, refusal) if proposal.leg == "stop" else refusal
            for proposal, refusal in zip(proposals, refusals, strict=True)
        ]

    def _intended(self, proposal: Proposal, now_ms: int) -> bool:
        return self._journal.add_intent(
            proposal.request,
            bar_ms=proposal.bar_ms,
            leg=proposal.leg,
            number=proposal.number,
            reference=proposal.reference,
            now_ms=now_ms,
        )

    def _judged(
        self, parts: Sequence[Proposal], view: MarketView, account: AccountView, now: float,
        state: TradingState,
    ) -> Refusal | None:  # fmt: skip
        """Return why an order must not be sent: each part sees those before it as filled."""
        whole = sum((part.request.quantity for part in parts), ZERO)
        for before, part in enumerate(parts):
            place = _Part(before, whole)
            refusal = self._check(part, view, account, now, state, place)
            if refusal is not None:
                return refusal
            account = _with(account, [part])
        return None

    def _submitted(self, proposals: Sequence[Proposal], view: MarketView) -> list[Outcome]:
        """Send the orders of a symbol one after the other; their intents are on disk."""
        outcomes: list[Outcome] = []
        decided = any(own.leg == "target" for own in proposals)
        for place, proposal in enumerate(proposals):
            before = list(zip(proposals[:place], outcomes, strict=True))
            words = self._kept_back(proposal, before, view)
            if decided and self._switch.tripped():  # perhaps in the meantime
                words = "the kill switch was tripped"  # and a stop would wait for no position
            if words:
                outcomes.append(Refused(NOT_SENT, words))
            else:
                outcomes.append(self._venue.submit(proposal.request))
        return outcomes

    def _kept_back(
        self, proposal: Proposal, before: Sequence[tuple[Proposal, Outcome]], view: MarketView
    ) -> str:
        """Return why an order must not be sent after those before it; empty where it may.

        Whether a stop was taken is no reason: a position without one is closed after its fill.
        """
        kind = _order_of(proposal)
        if before and _order_of(before[-1][0]) == kind:  # what it did is not known, or nothing
            if not isinstance(before[-1][1], Accepted):
                return "the part before it was not taken"
        else:
            closing = [outcome for own, outcome in before if own.leg == proposal.leg]
            if closing and not self._closed(closing, view.market):
                return "the position before it is not known to be closed"
        return ""

    def _closed(self, outcomes: Sequence[Outcome], market: Market) -> bool:
        """Return whether orders that only reduce have closed a position, or a stop before them.

        What they filled in full has left nothing on the other side. Otherwise the venue is asked,
        but after an order that may still be on its way.
        """
        if all(isinstance(own, Accepted) and own.order.status == "filled" for own in outcomes):
            return True
        if any(isinstance(own, Unknown) for own in outcomes):
            return False
        try:
            held = self._venue.positions([market.symbol])[market.symbol].quantity
        except VenueError:
            return False
        return not held or abs(held) < market.market_lot

    def _counted(self, parts: Sequence[Proposal], now: float) -> None:
        rates, request = self._rates, parts[0].request
        rates.messages.extend([now] * len(parts))
        if parts[0].leg == "target":
            rates.orders.extend([now] * len(parts))
            rates.same.setdefault((request.symbol, request.side), deque()).append(now)

    def cancel(self, symbol: str, client_id: str) -> Outcome:
        """Cancel an order; counted as a message, and never refused."""
        self._rates.messages.append(self._now_ms())
        return self._venue.cancel(symbol, client_id)

    def _now_ms(self) -> float:
        return self._clock.monotonic_ns() / 1e6


_FLAT = Exposure(ZERO, ZERO)


def _not_sent(refusal: Refusal | None) -> Refused:
    if refusal is None:
        return Refused(NOT_SENT, "the journal holds this very order already")
    return Refused(f"gate:{refusal.limit}", refusal.words)


def _reduces(exposure: Exposure, change: Decimal) -> bool:
    """Return whether a change lowers a position and does not turn it, wherever it lies."""
    if change < 0:
        return exposure.low + change >= 0 and exposure.low > 0
    return exposure.high + change <= 0 and exposure.high < 0


def _order_of(proposal: Proposal) -> tuple[str, Leg, bool]:
    """Return what parts of one order share: what closes a position is not what opens the next."""
    return proposal.request.symbol, proposal.leg, proposal.request.reduce_only


def _with(account: AccountView, parts: Sequence[Proposal]) -> AccountView:
    """Return the account as if parts of an order were filled, or not: both ends are kept."""
    symbol = parts[0].request.symbol
    exposure = account.exposures.get(symbol, _FLAT)
    for part in parts:
        request = part.request
        signed = request.quantity if request.side == "buy" else -request.quantity
        exposure = exposure.after(signed)
    return AccountView(
        account.equity,
        account.peak,
        account.day_start,
        {**account.exposures, symbol: exposure},
        account.prices,
    )


def _count(times: deque[float], since: float) -> int:
    """Return how many times lie after a time; older ones are dropped."""
    while times and times[0] <= since:
        times.popleft()
    return len(times)
