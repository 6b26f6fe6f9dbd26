"""Start-up is recovery: what the journal intended is compared with what the venue has.

In this order, and nothing is sent before its end: clock, markets, orders, fills, positions and
cash. An intent without an answer is settled by asking: open orders, then all orders, then fills.
Until it is settled it counts as filled. An order of this package in this account that the
journal does not know was sent by another trader, and this one refuses.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from itertools import chain
from statistics import median

from stormsail.core.clock import Clock, iso
from stormsail.core.errors import ConfigError, VenueError
from stormsail.execution.config import Feed
from stormsail.execution.journal import Intent, Journal, Severity
from stormsail.execution.order_gate import Exposure
from stormsail.execution.order_ids import epoch_in, prefix
from stormsail.execution.venue import ZERO, Balance, Market, Order, Position, Trade, Venue

_SAMPLES = 3
_OVERLAP_MS = 120_000
"""Fills are asked for from this long before the last known one: venues show some of them late."""
_DAY_MS = 86_400_000
_AT_WORK_MS = 7 * _DAY_MS
"""A trader whose last order is older than that is not at work."""


@dataclass(frozen=True)
class Reconciled:
    """What the venue says, once everything that can be settled is.

    Attributes:
        offset_ms: of this machine's clock, positive where it is ahead.
        strangers: open orders of other programs or people.
        unsettled: intents of which the venue does not know yet.
    """

    offset_ms: float
    markets: Mapping[str, Market]
    positions: Mapping[str, Position]
    balances: Mapping[str, Balance]
    strangers: tuple[Order, ...]
    unsettled: tuple[Intent, ...]


def reconcile(
    venue: Venue, journal: Journal, symbols: Sequence[str], clock: Clock, feed: Feed
) -> Reconciled:
    """Bring the journal up to what the venue says.

    Raises:
        ConfigError: if the clock is off, a market does not trade, or another trader is at work in
            the account.
        VenueError: if a question was not answered: unknown is not flat.
    """
    offset = agreed_offset_ms(venue, clock, feed)
    markets = venue.markets(symbols)
    check_markets(markets)
    created = int(journal.meta("created_ms"))
    open_orders = [order for symbol in symbols for order in venue.open_orders(symbol)]
    now = clock.now_ns() // 1_000_000
    since = max(created, now - _AT_WORK_MS)
    past = [order for symbol in symbols for order in venue.orders(symbol, since_ms=since)]
    check_alone(journal, venue.account_id(), [*open_orders, *past])
    update_orders(venue, journal, now_ms=now, visible_after_s=feed.visible_after_s)
    update_fills(venue, journal, symbols, now_ms=now)
    known = {intent.client_id for intent in journal.pending()}
    return Reconciled(
        offset_ms=offset,
        markets=markets,
        positions=venue.positions(symbols),
        balances=venue.balances(),
        strangers=tuple(order for order in open_orders if order.client_id not in known),
        unsettled=tuple(journal.unsettled()),
    )


def clock_offset_ms(venue: Venue, clock: Clock) -> float:
    """Return how far this machine's clock is ahead of the venue's, the middle of three."""
    offsets = []
    for _ in range(_SAMPLES):
        before = clock.now_ns()
        server = venue.server_time_ms()
        after = clock.now_ns()
        offsets.append((before + after) / 2e6 - server)
    return float(median(offsets))


def agreed_offset_ms(venue: Venue, clock: Clock, feed: Feed) -> float:
    """Return how far this machine's clock is ahead of the venue's, in milliseconds.

    Raises:
        ConfigError: if it is so far off that requests may be refused, or bars misjudged.
        VenueError: if the venue does not say what time it is.
    """
    offset = clock_offset_ms(venue, clock)
    if not abs(offset) <= feed.max_clock_offset_ms:
        raise ConfigError(
            "clock-offset",
            wrong=f"the clock of this machine must agree with the exchange's within "
            f"{feed.max_clock_offset_ms:g} ms",
            found=f"a difference of {offset:.0f} ms",
            remedy="Set the clock by a time server, then start again.",
        )
    return offset


def check_markets(markets: Mapping[str, Market]) -> None:
    """Refuse markets that do not trade.

    Raises:
        VenueError: if one is halted or delisted.
    """
    for symbol, market in markets.items():
        if market.status != "trading":
            raise VenueError(
                "venue-symbol",
                wrong=f"{symbol} must be traded at the exchange",
                found=market.status,
                remedy="Leave the symbol out, and close what is held of it at the exchange.",
            )


def present_markets(venue: Venue, before: Mapping[str, Market]) -> Mapping[str, Market]:
    """Return the rules of some markets now; one that is gone is no reason not to trade the others.

    Args:
        venue: that is asked.
        before: their rules as they were; one that is gone is `delisted` in them.

    Raises:
        VenueError: if the venue does not answer, or every market is gone.
    """
    try:
        return venue.markets(tuple(before))
    except VenueError as error:
        if error.code != "venue-symbol" or len(before) == 1:
            raise
        gone = error
    markets, present = dict(before), 0
    for symbol in before:
        try:
            markets |= venue.markets([symbol])
            present += 1
        except VenueError as error:
            if error.code != "venue-symbol":
                raise
            markets[symbol] = replace(before[symbol], status="delisted")
    if not present:
        raise gone
    return markets


def changes_of(
    before: Mapping[str, Market], now: Mapping[str, Market]
) -> Iterator[tuple[str, str, Severity]]:
    """Yield symbol, words and severity of each market of which something has changed."""
    for symbol, market in now.items():
        if market != before[symbol]:
            words = f"{before[symbol].status} to {market.status}, lot {market.market_lot}, "
            words += f"tick {market.tick}, least notional {market.min_notional}"
            yield symbol, words, "warning" if market.status == "trading" else "alarm"


def check_capital(found: Reconciled, prices: Mapping[str, float], capital: float) -> None:
    """Refuse to trade more than the account holds: its limits would be those of money not there.

    Args:
        found: what the venue says.
        prices: of the symbols, at which spot positions are counted.
        capital: that is to be traded, in quote currency.

    Raises:
        ConfigError: if cash, profits of open positions and coins together are less.
    """
    settle = next(iter(found.markets.values())).settle
    worth = found.balances[settle].total if settle in found.balances else ZERO
    for symbol, position in found.positions.items():
        spot = found.markets[symbol].kind == "spot"
        coins = position.quantity * Decimal(repr(prices[symbol])) if spot else ZERO
        worth += coins + position.unrealised
    if worth < Decimal(repr(capital)):
        raise ConfigError(
            "config-value",
            wrong="`--capital` must not be more than the account holds",
            found=f"{capital:,.2f} where {worth:,.2f} {settle} is there",
            remedy="Pass what is there, or less, or transfer more.",
        )


def check_alone(journal: Journal, account: str, orders: Sequence[Order]) -> None:
    """Refuse an account in which another trader of this package is at work.

    Raises:
        ConfigError: if an order has the mark of this account and that of another journal.
    """
    own = prefix(account)
    for order in orders:
        epoch = epoch_in(order.client_id)
        if order.client_id.startswith(own) and epoch != journal.epoch:
            raise ConfigError(
                "account-busy",
                wrong=f"one trader alone must trade the account {account}",
                found=f"order {order.client_id} of another journal, {order.status} "
                f"{iso(order.updated_ms)}",
                remedy="Stop the other trader, or go on with its journal.",
            )


def update_orders(
    venue: Venue,
    journal: Journal,
    *,
    now_ms: int,
    visible_after_s: float,
    wanted: Callable[[Intent], bool] = lambda _intent: True,
) -> list[Intent]:
    """Ask for every intent that may still change the account; return those that stay unsettled.

    Args:
        venue: where they are.
        journal: of the account.
        now_ms: stamps what becomes known.
        visible_after_s: age after which one that the venue does not know never was.
        wanted: which of them are asked for.
    """
    left = []
    for intent in filter(wanted, journal.pending()):
        try:
            order = settled_order(venue, intent)
        except VenueError as error:
            if error.code != "venue-symbol":
                raise
            left.append(intent)  # its market is gone, which is no reason not to ask for others
            continue
        if order is not None:
            if order.status != intent.status or order.filled != intent.filled:
                journal.add_order(intent.client_id, "settled", order, now_ms=now_ms)
        elif now_ms - intent.created_ms >= 1000.0 * visible_after_s:
            words = "neither an order nor a fill of this name at the venue"
            journal.add_order(intent.client_id, "absent", None, now_ms=now_ms, words=words)
        else:
            left.append(intent)
    return left


def settled_order(venue: Venue, intent: Intent) -> Order | None:
    """Return what the venue has of an intent: by its name, among open orders, among all orders."""
    order = venue.order(intent.symbol, intent.client_id)
    if order is not None:
        return order
    since = intent.created_ms - _OVERLAP_MS
    for orders in (venue.open_orders(intent.symbol), venue.orders(intent.symbol, since_ms=since)):
        for order in orders:
            if order.client_id == intent.client_id:
                return order
    return None


def update_fills(
    venue: Venue, journal: Journal, symbols: Sequence[str], *, now_ms: int | None = None
) -> int:
    """Ask for fills since the last known one; return how many were new.

    A fill counts once, by its number, however often it is reported.

    Args:
        venue: where they are.
        journal: of the account.
        symbols: whose fills.
        now_ms: time of the question. A symbol that has not been traded for long is then asked for
            no more than a day before its last question: venues tell of long times piece by piece.
    """
    count, created = 0, int(journal.meta("created_ms"))
    questions = []
    for symbol in symbols:
        newest = journal.rows("SELECT max(ts) FROM fills WHERE symbol = ?", symbol)[0][0]
        since = created if newest is None else int(str(newest))
        since = max(since, journal.fills_query_ms.get(symbol, 0) - _DAY_MS)
        questions.append(partial(_trades, venue, symbol, since - _OVERLAP_MS))
    answers = venue.at_once(questions)
    with journal.transaction():
        for trade in chain.from_iterable(answers):
            name = journal.name_of(trade.symbol, trade.order_id)
            if name is None and trade.ts_ms < created:
                continue  # before this journal, and none of its orders
            count += journal.add_fill(trade, name)
    if now_ms is not None:
        journal.fills_query_ms.update(dict.fromkeys(symbols, now_ms))
    return count


def _trades(venue: Venue, symbol: str, since_ms: int) -> Sequence[Trade]:
    """Return the fills of a symbol; none where its market is gone."""
    try:
        return venue.trades(symbol, since_ms=since_ms)
    except VenueError as error:
        if error.code != "venue-symbol":
            raise
        return ()


def exposures(
    positions: Mapping[str, Position], markets: Mapping[str, Market], pending: Sequence[Intent]
) -> dict[str, Exposure]:
    """Return the range of each position: what the venue holds, and all that may be filled.

    Protective stops only lower a position, and are left out.
    """
    ranges = {}
    for symbol, position in positions.items():
        market = markets[symbol]
        held = ZERO if abs(position.quantity) < market.market_lot else position.quantity
        low = high = held
        for intent in pending:
            if intent.symbol == symbol and intent.leg == "target":
                rest = intent.signed_rest
                low, high = low + min(rest, ZERO), high + max(rest, ZERO)
        ranges[symbol] = Exposure(low, high)
    return ranges


def filled_quantity(journal: Journal, symbol: str) -> Decimal:
    """Return the sum of all fills that the journal holds of a symbol."""
    total = ZERO
    for side, quantity in journal.rows("SELECT side, quantity FROM fills WHERE symbol = ?", symbol):
        total += Decimal(str(quantity)) if side == "buy" else -Decimal(str(quantity))
    return total
