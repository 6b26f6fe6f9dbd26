"""`fetch_terms`: store what an exchange says about a symbol beside its bars.

Only what public requests answer: most exchanges show maintenance tiers to account holders alone,
and borrow rates likewise. What is not said stays unknown.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np

from stormsail.core.clock import Clock
from stormsail.core.errors import StormsailError, VenueError
from stormsail.market.fetch.client import Client, Requester, RetryPolicy, load_ccxt, response_error
from stormsail.market.fetch.journal import FETCH
from stormsail.market.fetch.pages import find_market, number_of, whole
from stormsail.market.instruments import Instrument, InstrumentTerms
from stormsail.market.store import Store

_NEVER_MS = 4_102_444_800_000
"""2100: Binance dates the delivery of a perpetual that goes on after this."""

EXPECTED = ("kind", "lot", "tick", "min_notional", "maker_fee", "taker_fee", "listed")
"""Terms that an exchange can state of every symbol; of perpetuals also those below."""

PERPETUAL_TERMS = ("max_leverage", "maintenance")


@dataclass(frozen=True)
class FetchedTerms:
    """Result of a fetch of terms."""

    instrument: Instrument
    changed: bool
    """Whether the store had other terms, or none."""

    @property
    def unknown(self) -> tuple[str, ...]:
        """Terms that nobody has stated."""
        known = self.instrument.terms.known()
        perpetual = self.instrument.terms.kind == "perpetual"
        expected = (*EXPECTED, *(PERPETUAL_TERMS if perpetual else ()))
        return tuple(name for name in expected if name not in known)


def fetch_terms(
    client: Client,
    store: Store,
    symbol: str,
    *,
    clock: Clock,
    generator: np.random.Generator,
    retry: RetryPolicy | None = None,
) -> FetchedTerms:
    """Store the terms of a symbol; those that the user gave stay as they are.

    Where terms are stored and the exchange's list of markets is not loaded, nothing is asked.

    Args:
        client: a ccxt exchange, see `connect`.
        store: where the terms go.
        symbol: as ccxt writes it.
        clock: waits between tries.
        generator: jitter of the waits.
        retry: how often and how long to try.

    Raises:
        VenueError: if the exchange does not answer, has no such symbol, or answers nonsense.
        DataError: if stored terms cannot be read, or new ones not be written.
    """
    stored = store.read_terms(symbol)
    if stored is not None and not client.markets:
        return FetchedTerms(stored, changed=False)
    requester = Requester(client, clock, generator, retry or RetryPolicy())
    market = find_market(requester, symbol)
    read = _read(client, market)
    if market.get("swap") and market.get("linear"):
        read |= _margin(requester, symbol)
    sources = {name: _source(client, name, value) for name, value in read.items()}
    with store.writing(FETCH):
        stored = store.read_terms(symbol)  # a person may have given some meanwhile
        try:
            fetched = InstrumentTerms.from_mapping(read)
            before = stored or Instrument(symbol, InstrumentTerms())
            instrument = before.with_fetched(fetched, sources)
        except StormsailError as error:
            raise response_error(client, f"the terms of {symbol}", error.found) from error
        if instrument != stored:
            store.write_terms(instrument)
    return FetchedTerms(instrument, changed=instrument != stored)


def _read(client: Client, market: Mapping[str, object]) -> dict[str, object]:
    """Return what ccxt's description of a market states, by name of our term."""
    linear = bool(market.get("swap")) and bool(market.get("linear"))
    precision, limits = _table(market.get("precision")), _table(market.get("limits"))
    size = _positive(market.get("contractSize")) if market.get("contract") else 1.0
    lot = _step(client, precision.get("amount"))
    terms = {
        "kind": "spot" if market.get("spot") else "perpetual" if linear else None,
        "lot": None if lot is None or size is None else float(np.round(lot * size, 16)),
        "tick": _step(client, precision.get("price")),
        "min_notional": _positive(_table(limits.get("cost")).get("min")),
        "maker_fee": number_of(market.get("maker")),
        "taker_fee": number_of(market.get("taker")),
        "max_leverage": _positive(_table(limits.get("leverage")).get("max")) if linear else None,
        "listed": _time(market.get("created")),
        "delisted": _time(market.get("expiry")) or _delivery(market),
    }
    return {name: value for name, value in terms.items() if value is not None}


def _margin(requester: Requester, symbol: str) -> dict[str, object]:
    """Return the maintenance tiers, where the exchange shows them without an account."""
    client = requester.client
    what = f"the margin tiers of {symbol}"
    try:
        if client.has.get("fetchMarketLeverageTiers") is True:
            answer = requester.request(what, lambda: client.fetch_market_leverage_tiers(symbol))
        elif client.has.get("fetchLeverageTiers") is True:
            all_ = requester.request(what, lambda: client.fetch_leverage_tiers([symbol]))
            answer = _table(all_).get(symbol)
        else:
            return {}
    except VenueError as error:
        if error.code != "venue-refused":
            raise
        return {}
    return margin_terms(answer)


def margin_terms(answer: object) -> dict[str, object]:
    """Return tiers and largest leverage from ccxt's list of leverage tiers; empty if unusable.

    A tier of ccxt has `minNotional`, `maintenanceMarginRate` and `maxLeverage`. Rates that fall, or
    tiers that do not begin at 0, are no margin by parts, and none is made of them.
    """
    if not isinstance(answer, list) or not answer:
        return {}
    rows = [_table(entry) for entry in answer]
    tiers = [
        (number_of(r.get("minNotional")), number_of(r.get("maintenanceMarginRate"))) for r in rows
    ]
    known = sorted((low, rate) for low, rate in tiers if low is not None and rate is not None)
    rising = all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(known))
    if len(known) < len(rows) or known[0][0] != 0.0 or not rising:
        return {}
    terms: dict[str, object] = {
        "maintenance": [{"notional": low, "rate": rate} for low, rate in known]
    }
    most = max((number_of(row.get("maxLeverage")) or 0.0 for row in rows), default=0.0)
    return terms | ({"max_leverage": most} if most >= 1.0 else {})


def _source(client: Client, name: str, value: object) -> str:
    """Return who stated a term: the exchange, or ccxt's own table of its fees."""
    if name not in {"maker_fee", "taker_fee"}:
        return client.id
    tables = [client.fees, *(part for part in client.fees.values() if isinstance(part, Mapping))]
    key = name.removesuffix("_fee")
    listed = [_table(_table(table).get("trading")).get(key) for table in tables]
    return f"ccxt's fee table of {client.id}" if value in listed else client.id


def _step(client: Client, value: object) -> float | None:
    """Return a step from ccxt's precision, which counts decimals for some exchanges."""
    ccxt = load_ccxt()
    number = number_of(value)
    if number is None:
        return None
    if client.precisionMode == ccxt.TICK_SIZE:
        return number if number > 0.0 else None
    if client.precisionMode == ccxt.DECIMAL_PLACES:
        return float(f"1e{-round(number)}")
    return None


def _positive(value: object) -> float | None:
    number = number_of(value)
    return number if number is not None and number > 0.0 else None


def _time(value: object) -> str | None:
    milliseconds = whole(value)
    if not milliseconds or milliseconds >= _NEVER_MS:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()


def _delivery(market: Mapping[str, object]) -> str | None:
    """Return when Binance delivers a perpetual, which is when it ends."""
    number = number_of(_table(market.get("info")).get("deliveryDate"))
    return None if number is None else _time(round(number))


def _table(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}
