"""Terms from an exchange: the real ccxt client against a loopback server, and ccxt's own tables."""

from datetime import UTC, datetime

import numpy as np
import pytest

from stormsail.core.clock import SystemClock
from stormsail.core.errors import VenueError
from stormsail.execution.loopback import Loopback, candles
from stormsail.market.fetch import connect
from stormsail.market.fetch.terms import fetch_terms, margin_terms
from stormsail.market.instruments import GIVEN, Instrument, InstrumentTerms, Tier
from stormsail.market.store import Store

SPOT, PERPETUAL = "BTC/USDT", "BTC/USDT:USDT"


@pytest.fixture
def venue():
    with Loopback() as venue:
        venue.spot["BTCUSDT", "1h"] = venue.perp["BTCUSDT", "1h"] = candles(1, 3, start=0)
        yield venue


def fetched(venue, store, symbol, client=None):
    client = client or connect("binance", [symbol], base_url=venue.url)
    return fetch_terms(
        client, store, symbol, clock=SystemClock(), generator=np.random.default_rng(0)
    )


def test_what_the_exchange_says_is_stored_and_the_rest_stays_unknown(venue, tmp_path):
    store = Store(tmp_path)
    done = fetched(venue, store, PERPETUAL)
    assert done.changed
    assert done.instrument.terms == InstrumentTerms(
        kind="perpetual",
        lot=0.001,
        tick=0.01,
        min_notional=100.0,
        maker_fee=0.0002,
        taker_fee=0.0005,
        listed=datetime(2019, 9, 25, 8, tzinfo=UTC),
    )
    assert done.unknown == ("max_leverage", "maintenance")  # shown to account holders alone
    assert done.instrument.sources["lot"] == "binance"
    assert done.instrument.sources["taker_fee"] == "ccxt's fee table of binance"
    assert store.read_terms(PERPETUAL) == done.instrument
    spot = fetched(venue, store, SPOT).instrument.terms
    assert (spot.kind, spot.min_notional, spot.taker_fee, spot.listed) == ("spot", 5.0, 0.001, None)


def test_a_second_fetch_asks_nothing_more_and_keeps_what_the_user_gave(venue, tmp_path):
    store = Store(tmp_path)
    store.write_terms(
        Instrument(PERPETUAL, InstrumentTerms()).with_given(InstrumentTerms(taker_fee=0.0001))
    )
    client = connect("binance", [PERPETUAL], base_url=venue.url)
    assert not fetched(venue, store, PERPETUAL, client).changed  # no list of markets is loaded
    assert venue.requests == []
    client.load_markets(True)
    asked = len(venue.requests)
    done = fetched(venue, store, PERPETUAL, client)
    assert done.changed
    assert (done.instrument.terms.taker_fee, done.instrument.terms.lot) == (0.0001, 0.001)
    assert done.instrument.sources["taker_fee"] == GIVEN
    assert not fetched(venue, store, PERPETUAL, client).changed
    assert len(venue.requests) == asked


def test_a_perpetual_that_ends_has_its_delisting_and_nonsense_is_refused(venue, tmp_path):
    client = connect("binance", [PERPETUAL], base_url=venue.url)
    client.load_markets(True)
    market = client.markets[PERPETUAL]
    market["info"]["deliveryDate"] = "1652342400000"
    terms = fetched(venue, Store(tmp_path), PERPETUAL, client).instrument.terms
    assert terms.delisted == datetime(2022, 5, 12, 8, tzinfo=UTC)
    market["taker"] = 7.0
    with pytest.raises(VenueError) as caught:
        fetched(venue, Store(tmp_path), PERPETUAL, client)
    assert caught.value.code == "venue-response"
    assert Store(tmp_path).read_terms(PERPETUAL).terms == terms


def test_contracts_are_counted_in_coins_and_decimals_become_steps(venue, tmp_path):
    client = connect("binance", [PERPETUAL], base_url=venue.url)
    client.load_markets(True)
    market = client.markets[PERPETUAL]
    market["contractSize"] = 0.01
    assert fetched(venue, Store(tmp_path / "a"), PERPETUAL, client).instrument.terms.lot == 0.00001
    client.precisionMode, market["precision"] = 2, {"amount": 1, "price": 2}
    terms = fetched(venue, Store(tmp_path / "b"), PERPETUAL, client).instrument.terms
    assert (terms.lot, terms.tick) == (0.001, 0.01)
    client.precisionMode = 3  # significant digits are no step
    terms = fetched(venue, Store(tmp_path / "c"), PERPETUAL, client).instrument.terms
    assert (terms.lot, terms.tick) == (None, None)


ROWS = [
    {"minNotional": 0.0, "maintenanceMarginRate": 0.004, "maxLeverage": 125.0},
    {"minNotional": 50_000.0, "maintenanceMarginRate": 0.005, "maxLeverage": 100.0},
]


def test_margin_tiers_are_taken_as_ccxt_writes_them():
    read = InstrumentTerms.from_mapping(margin_terms(ROWS))
    assert read.maintenance == (Tier(notional=0.0, rate=0.004), Tier(notional=50_000.0, rate=0.005))
    assert read.max_leverage == 125.0


@pytest.mark.parametrize(
    "rows",
    [
        None,
        [],
        ROWS[1:],
        [ROWS[0], {**ROWS[1], "maintenanceMarginRate": 0.001}],
        [ROWS[0], {**ROWS[1], "minNotional": None}],
    ],
)
def test_tiers_that_are_no_margin_by_parts_stay_unknown(rows):
    assert margin_terms(rows) == {}


def test_public_tiers_are_asked_for(venue, tmp_path):
    client = connect("binance", [PERPETUAL], base_url=venue.url)
    client.load_markets(True)
    client.has["fetchMarketLeverageTiers"] = True
    client.fetch_market_leverage_tiers = lambda _symbol: (
        client.fetch(f"{venue.url}/fapi/v1/exchangeInfo") and ROWS
    )
    terms = fetched(venue, Store(tmp_path), PERPETUAL, client).instrument.terms
    assert (len(terms.maintenance), terms.max_leverage) == (2, 125.0)
