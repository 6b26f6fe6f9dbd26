"""Instrument terms: what is stated, by whom, and that a changed file is seen."""

import contextlib
import json
import os
import stat
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from stormsail.core.errors import ConfigError, DataError
from stormsail.core.files import atomic
from stormsail.market import Interval, Panel, load_panel
from stormsail.market.bars import from_columns
from stormsail.market.instruments import (
    GIVEN,
    Instrument,
    InstrumentTerms,
    kind_of,
    read_terms_file,
)
from stormsail.market.store import Store

HOUR = Interval.parse("1h")
START = datetime(2024, 1, 1, tzinfo=UTC)
START_MS = round(1000 * START.timestamp())
PERPETUAL, SPOT = "BTC/USDT:USDT", "BTC/USDT"
TERMS = InstrumentTerms(
    kind="perpetual",
    lot=0.001,
    tick=0.1,
    min_notional=100.0,
    maker_fee=-0.0001,
    taker_fee=0.0005,
    max_leverage=20.0,
    maintenance=({"notional": 0.0, "rate": 0.01}, {"notional": 5e4, "rate": 0.025}),
    listed=START,
)
INSTRUMENT = Instrument(PERPETUAL, TERMS, dict.fromkeys(TERMS.known(), "binance"))


def bars(symbol=PERPETUAL, rows=5):
    price = np.full(rows, 100.0)
    ts = START_MS + HOUR.milliseconds * np.arange(rows)
    names = ("open", "high", "low", "close", "volume")
    return from_columns(symbol, HOUR, {"ts": ts, **dict.fromkeys(names, price)})


def refusal(call, kind=DataError):
    with pytest.raises(kind) as caught:
        call()
    return caught.value


def test_the_kind_is_how_the_symbol_is_written():
    assert kind_of(SPOT) == "spot"
    assert kind_of(PERPETUAL) == "perpetual"
    assert "settled in BTC and not in USD" in refusal(lambda: kind_of("BTC/USD:BTC")).found


@pytest.mark.parametrize(("symbol", "kind"), [(SPOT, "perpetual"), (PERPETUAL, "margin")])
def test_a_kind_that_contradicts_the_symbol_is_refused(symbol, kind):
    error = refusal(lambda: Instrument(symbol, InstrumentTerms(kind=kind)))
    assert error.code == "data-symbol"
    assert f"`{kind}`" in error.found


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"lot": -0.1}, "lot"),
        ({"taker_fee": 1.0}, "taker_fee"),
        ({"max_leverage": 0.5}, "max_leverage"),
        ({"lots": 0.1}, "lot"),
        ({"maintenance": [{"notional": 5.0, "rate": 0.1}]}, "must begin at a notional of 0"),
        (
            {"maintenance": [{"notional": 0.0, "rate": 0.1}, {"notional": 5.0, "rate": 0.05}]},
            "never fall in rate",
        ),
        ({"listed": "2024-01-02T00:00:00Z", "delisted": "2024-01-01T00:00:00Z"}, "before"),
        ({"listed": "2024-01-02T00:00:00"}, "time zone"),
    ],
)
def test_terms_that_cannot_be_are_refused_in_words(terms, words):
    assert words in str(refusal(lambda: InstrumentTerms.from_mapping(terms), ConfigError))


def test_what_the_user_gives_stands_before_what_an_exchange_says():
    given = INSTRUMENT.with_given(
        InstrumentTerms(taker_fee=0.0002, delisted=START.replace(year=2030))
    )
    assert (given.terms.taker_fee, given.terms.lot) == (0.0002, 0.001)
    assert (given.sources["taker_fee"], given.sources["lot"]) == (GIVEN, "binance")
    again = given.with_fetched(
        InstrumentTerms(taker_fee=0.0005, lot=0.01), {"taker_fee": "binance", "lot": "binance"}
    )
    assert (again.terms.taker_fee, again.terms.lot) == (0.0002, 0.01)
    assert again.terms.tick is None  # the exchange says it no longer
    assert again.terms.delisted == START.replace(year=2030)
    assert again.sources == {"taker_fee": GIVEN, "delisted": GIVEN, "lot": "binance"}


def test_terms_are_stored_and_read_with_their_sources(tmp_path):
    store = Store(tmp_path)
    assert store.read_terms(PERPETUAL) is None
    path = store.write_terms(INSTRUMENT)
    assert path == tmp_path / "BTC-USDT_USDT" / "terms.json"
    assert store.read_terms(PERPETUAL) == INSTRUMENT
    first = path.read_bytes()
    store.write_terms(INSTRUMENT)
    assert path.read_bytes() == first
    assert store.contents() == []
    store.remove_terms(PERPETUAL)
    assert store.read_terms(PERPETUAL) is None


def test_a_changed_term_is_refused_and_left_as_it_is(tmp_path):
    store = Store(tmp_path)
    path = store.write_terms(INSTRUMENT)
    whole = json.loads(path.read_bytes())
    for name, value in (("taker_fee", 0.0004), ("lot", None)):
        changed = {**whole, "terms": {**whole["terms"], name: value}}
        path.write_text(json.dumps(changed))
        error = refusal(lambda: store.read_terms(PERPETUAL))
        assert error.code == "data-unreadable"
        assert "do not fit the hash" in error.found
        assert json.loads(path.read_bytes()) == changed
    for data in (
        b"",
        b"{",
        json.dumps({**whole, "format": "other"}).encode(),
        path.read_bytes()[:90],
    ):
        path.write_bytes(data)
        assert refusal(lambda: store.read_terms(PERPETUAL)).code == "data-unreadable"


def test_every_flipped_bit_of_a_file_is_seen(tmp_path):
    store = Store(tmp_path)
    path = store.write_terms(INSTRUMENT)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with contextlib.suppress(DataError):
            assert store.read_terms(PERPETUAL) == INSTRUMENT  # white space between two values


def test_terms_under_another_symbol_are_refused(tmp_path):
    store = Store(tmp_path)
    path = store.write_terms(INSTRUMENT)
    other = store.terms_path("ETH/USDT:USDT")
    other.parent.mkdir()
    path.rename(other)
    assert refusal(lambda: store.read_terms("ETH/USDT:USDT")).code == "data-mismatch"


def test_a_writer_that_dies_leaves_the_old_terms(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.write_terms(INSTRUMENT)

    def dies(*_arguments, **_options):
        raise OSError("no space left")

    monkeypatch.setattr(os, "rename", dies)
    monkeypatch.setattr(os, "replace", dies)
    error = refusal(lambda: store.write_terms(INSTRUMENT.with_given(InstrumentTerms(lot=1.0))))
    assert error.code == "data-write"
    monkeypatch.undo()
    assert store.read_terms(PERPETUAL) == INSTRUMENT
    with atomic.locked_folder(store.terms_path(PERPETUAL).parent) as folder:
        atomic.remove_leftovers(folder)
    assert [path.name for path in store.terms_path(PERPETUAL).parent.iterdir()] == ["terms.json"]
    assert stat.S_ISREG(store.terms_path(PERPETUAL).stat().st_mode)


def test_a_panel_has_the_stored_terms_and_an_old_store_has_none(tmp_path):
    store = Store(tmp_path)
    store.write(bars())
    old = load_panel(store, [PERPETUAL], HOUR)
    assert old.instruments == {}
    assert old.digest() == Panel.from_bars([bars()]).digest()
    store.write_terms(INSTRUMENT)
    known = load_panel(store, [PERPETUAL], HOUR)
    assert known.instruments == {PERPETUAL: INSTRUMENT}
    assert known.between(START_MS, START_MS + 1).instruments == known.instruments
    assert known.digest() != old.digest()
    store.write_terms(Instrument(PERPETUAL, TERMS, dict.fromkeys(TERMS.known(), GIVEN)))
    assert load_panel(store, [PERPETUAL], HOUR).digest() == known.digest()  # whoever said it


def test_bars_outside_of_listing_and_delisting_are_not_traded(tmp_path):
    store = Store(tmp_path)
    store.write(bars())
    listed, delisted = START + timedelta(minutes=90), START + timedelta(hours=3)
    terms = InstrumentTerms(listed=listed, delisted=delisted)
    store.write_terms(Instrument(PERPETUAL, terms))
    panel = load_panel(store, [PERPETUAL], HOUR)
    # 00:00 ends before 01:30; 01:00 holds it; 03:00 is the delisting.
    assert panel.tradable[:, 0].tolist() == [False, True, True, False, False]
    assert panel.listed.all()


def test_a_file_of_terms_has_a_table_for_each_symbol():
    tables = {SPOT: {"lot": 0.00001}, PERPETUAL: {"kind": "perpetual"}}
    read = read_terms_file(tables, source="terms.toml")
    assert read[SPOT] == InstrumentTerms(lot=0.00001)
    wrong = refusal(lambda: read_terms_file({SPOT: 3}, source="terms.toml"), ConfigError)
    assert "a table of terms for each symbol" in wrong.wrong
    assert "terms.toml, BTC/USDT" in str(
        refusal(lambda: read_terms_file({SPOT: {"lto": 1.0}}, source="terms.toml"), ConfigError)
    )
    assert refusal(lambda: read_terms_file({"BTCUSDT": {}}, source="x")).code == "data-symbol"
