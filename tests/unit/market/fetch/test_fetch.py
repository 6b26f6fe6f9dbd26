"""Fetching with the real ccxt client from an exchange on the loopback."""

import json
import logging
import os
import socket
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from stormsail.core.clock import ManualClock, iso
from stormsail.core.errors import (
    ArgumentError,
    ChoiceError,
    ConfigError,
    DataError,
    RangeError,
    StormsailError,
    VenueError,
)
from stormsail.core.files import atomic
from stormsail.core.generators import Generators
from stormsail.execution.loopback import Fault, Loopback, candles, rates
from stormsail.execution.loopback.tape import HOUR
from stormsail.market.bars import OPTIONAL, REQUIRED, Bars, Funding
from stormsail.market.fetch import journal as journal_module
from stormsail.market.fetch.bars import PAGES_PER_PART, Progress, fetch_bars
from stormsail.market.fetch.client import RetryPolicy, connect
from stormsail.market.fetch.funding import fetch_funding
from stormsail.market.fetch.journal import Part, journal_path, open_journal
from stormsail.market.fetch.pages import number_of
from stormsail.market.fetch.plan import (
    Gap,
    Span,
    bar_at_or_after,
    closed_end,
    gaps,
    missing,
    read_requested,
    union,
)
from stormsail.market.interval import Interval
from stormsail.market.store import Store

START = 1_609_459_200_000  # 2021-01-01T00:00:00Z
H1 = Interval.parse("1h")
SPOT, PERP = "BTC/USDT", "BTC/USDT:USDT"
ALL = (*REQUIRED, *OPTIONAL)
PLACES = (0, 1, 2, 3, 4, 5, 7, 8, 9, 10)


@pytest.fixture
def venue():
    with Loopback() as server:
        server.spot["BTCUSDT", "1h"] = candles(1, 400, start=START)
        server.perp["BTCUSDT", "1h"] = candles(2, 400, start=START)
        server.funding["BTCUSDT"] = rates(3, 50, start=START)
        yield server


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


class Fetcher:
    """A client, a store and a clock that stands 400 hours after the start."""

    def __init__(self, venue, store, *, exchange="binance", symbol=SPOT, hours=400.0):
        self.venue, self.store, self.symbol = venue, store, symbol
        self.clock = ManualClock(int((START + hours * HOUR) * 1_000_000))
        self.client = connect(exchange, [symbol], base_url=venue.url, timeout_s=5.0)
        self.client.enableRateLimit = False  # ccxt's own pacing waits for real
        self.reports = []

    def bars(self, **changes):
        settings = {"since_ms": START, "page": 50, "on_progress": self.reports.append}
        return fetch_bars(
            self.client,
            self.store,
            self.symbol,
            H1,
            clock=self.clock,
            generator=Generators(0).numpy("fetch"),
            **(settings | changes),
        )

    def funding(self, **changes):
        return fetch_funding(
            self.client,
            self.store,
            self.symbol,
            clock=self.clock,
            generator=Generators(0).numpy("fetch"),
            **({"since_ms": START, "page": 20} | changes),
        )

    def stored(self):
        return self.store.read(self.symbol, H1)


@pytest.fixture
def fetcher(venue, store):
    return Fetcher(venue, store)


@pytest.fixture
def unified(venue, store):
    """The same exchange under a name for which we know no raw candles."""
    import ccxt  # half a second of imports, so not above

    class UnifiedBinance(ccxt.binance):
        def describe(self):
            return self.deep_extend(super().describe(), {"id": "unified"})

    fetcher = Fetcher(venue, store)
    client = UnifiedBinance({"options": fetcher.client.options, "enableRateLimit": False})
    client.urls["api"], client.has["fetchCurrencies"] = fetcher.client.urls["api"], False
    fetcher.client = client
    return fetcher


def assert_holds(bars, rows, columns=ALL):
    """Every value of the store equals the venue's, digit for digit."""
    assert bars.columns == columns
    for name, place in zip(columns, PLACES, strict=False):
        expected = [float(row[place]) for row in rows]
        assert bars.table[name].to_pylist() == expected, name


def files(root):
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def refused(call):
    with pytest.raises(StormsailError) as caught:
        call()
    return caught.value


# --- the whole way ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exchange", "symbol", "path"),
    [
        ("binance", SPOT, "/api/v3/klines"),
        ("binance", PERP, "/fapi/v1/klines"),
        ("binanceusdm", PERP, "/fapi/v1/klines"),
    ],
)
def test_thousands_of_bars_arrive_digit_for_digit(exchange, symbol, path, venue, store):
    rows = candles(7, 4321, start=START)
    (venue.perp if ":" in symbol else venue.spot)["BTCUSDT", "1h"] = rows
    fetcher = Fetcher(venue, store, exchange=exchange, symbol=symbol, hours=4321)
    done = fetcher.bars(page=None)
    assert_holds(fetcher.stored(), rows)
    assert (done.added, done.rows, done.gaps, done.retries) == (4321, 4321, (), 0)
    assert [request.path for request in venue.of_group("data")] == [path] * 5  # 4 of 1000, 1 of 321
    assert {request.params["limit"] for request in venue.of_group("data")} == {"1000"}
    assert len(venue.of_group("info")) == 1
    assert done.requests == 6
    assert fetcher.reports[-1] == Progress(symbol, 4321, 4321)
    assert done.path == store.path(symbol, H1)


def test_the_unified_way_gives_six_columns(unified, venue):
    done = unified.bars()
    assert_holds(unified.stored(), venue.spot["BTCUSDT", "1h"], REQUIRED)
    assert (done.added, len(venue.of_group("data"))) == (400, 8)
    assert "endTime" not in venue.of_group("data")[0].params


def test_an_exchange_that_answers_by_windows_is_paged_through_empty_ones(unified, venue):
    rows = venue.spot["BTCUSDT", "1h"]
    venue.windowed = True
    venue.spot["BTCUSDT", "1h"] = rows[120:170] + rows[330:]  # listed late, then out for days
    done = unified.bars()
    assert_holds(unified.stored(), rows[120:170] + rows[330:], REQUIRED)
    assert done.gaps == (Gap(START + 170 * HOUR, 160, confirmed=True),)
    assert unified.bars().requests == 0


def test_the_notes_tell_where_the_bars_come_from(fetcher):
    fetcher.bars()
    assert fetcher.stored().notes == {
        "requested": f"[[{START}, {START + 400 * HOUR}]]",
        "exchange": "binance",
        "gaps": "[]",
    }
    assert list(fetcher.store.root.rglob("*")) == [
        fetcher.store.root / "BTC-USDT",
        fetcher.store.root / "BTC-USDT" / "1h.parquet",
    ]


def test_no_keys_are_read_and_none_are_sent(fetcher, venue, monkeypatch):
    monkeypatch.setenv("BINANCE_APIKEY", "canary-key")
    monkeypatch.setenv("BINANCE_SECRET", "canary-secret")
    fetcher.bars()
    assert not fetcher.client.apiKey
    assert not fetcher.client.secret
    seen = json.dumps([[r.path, r.params, r.headers] for r in venue.requests])
    assert "canary" not in seen
    assert "apikey" not in seen.lower()
    assert "signature" not in seen


def test_the_log_of_ccxt_stays_quiet(fetcher, caplog):
    caplog.set_level(logging.DEBUG)
    fetcher.bars()
    assert [record.name for record in caplog.records if record.name.startswith("ccxt")] == []


# --- what is asked for -----------------------------------------------------------------------


def test_a_second_fetch_of_the_same_asks_nothing(fetcher, venue):
    fetcher.bars()
    before = files(fetcher.store.root)
    venue.reset()
    done = fetcher.bars()
    assert (done.added, done.rows, done.requests) == (0, 400, 0)
    assert venue.requests == []
    assert files(fetcher.store.root) == before


def test_new_bars_are_added_at_the_end_with_one_bar_of_overlap(fetcher, venue):
    fetcher.bars(until_ms=START + 300 * HOUR)
    venue.reset()
    done = fetcher.bars(since_ms=None)
    assert done.added == 100
    assert [int(r.params["startTime"]) for r in venue.of_group("data")] == [
        START + hour * HOUR for hour in (299, 349, 399)
    ]
    assert_holds(fetcher.stored(), venue.spot["BTCUSDT", "1h"])


def test_older_bars_are_added_in_front(fetcher, venue):
    fetcher.bars(since_ms=START + 300 * HOUR)
    venue.reset()
    done = fetcher.bars(since_ms=START + 200 * HOUR)
    assert done.added == 100
    assert_holds(fetcher.stored(), venue.spot["BTCUSDT", "1h"][200:])
    assert len(venue.of_group("data")) == 3  # 100 bars and the seam, 50 at once
    assert int(venue.of_group("data")[0].params["endTime"]) == START + 301 * HOUR - 1


def test_head_and_tail_in_pieces_end_in_the_same_bytes_as_one_fetch(venue, tmp_path):
    whole, pieces = (Fetcher(venue, Store(tmp_path / name)) for name in ("whole", "pieces"))
    whole.bars()
    pieces.bars(since_ms=START + 100 * HOUR, until_ms=START + 200 * HOUR)
    pieces.bars(since_ms=START + 300 * HOUR)  # leaves no break of our making
    pieces.bars(since_ms=START)
    assert files(pieces.store.root) == files(whole.store.root)


def test_since_between_two_bars_begins_with_the_next(fetcher):
    fetcher.bars(since_ms=START + 1)
    assert fetcher.stored().ts[0] == START + HOUR


def test_until_is_not_included(fetcher):
    fetcher.bars(until_ms=START + 10 * HOUR)
    assert fetcher.stored().ts[-1] == START + 9 * HOUR
    fetcher.bars(until_ms=START + 20 * HOUR + 1)
    assert fetcher.stored().ts[-1] == START + 20 * HOUR


def test_nothing_before_the_listing_is_requested_once(fetcher, venue):
    early = START - 5000 * HOUR
    done = fetcher.bars(since_ms=early)
    assert (done.rows, done.gaps) == (400, ())
    assert read_requested(fetcher.stored().notes) == [Span(early, START + 400 * HOUR)]
    venue.reset()
    assert fetcher.bars(since_ms=early).requests == 0


def test_an_exchange_that_has_nothing_leaves_no_file(fetcher, venue):
    done = fetcher.bars(since_ms=START + 390 * HOUR, until_ms=START + 391 * HOUR)
    assert done.added == 1
    venue.spot["BTCUSDT", "1h"] = []
    other = Fetcher(venue, Store(fetcher.store.root / "other"))
    done = other.bars()
    assert (done.path, done.rows, len(venue.of_group("data"))) == (None, 0, 1 + 2)  # asked twice
    assert not other.store.path(SPOT, H1).exists()


def test_progress_counts_from_the_first_missing_bar(fetcher):
    fetcher.bars(until_ms=START + 300 * HOUR)
    fetcher.reports.clear()
    fetcher.bars()
    assert [(report.done, report.total) for report in fetcher.reports] == [
        (49, 100),
        (99, 100),
        (100, 100),
    ]


# --- closed or not ---------------------------------------------------------------------------


@pytest.mark.parametrize(("hours", "expected"), [(10.0, 10), (10.999, 10), (11.0, 11)])
def test_the_forming_bar_is_never_stored(hours, expected, venue, store):
    fetcher = Fetcher(venue, store, hours=hours)
    fetcher.bars()
    assert len(fetcher.stored()) == expected


def test_a_forming_bar_that_is_sent_all_the_same_is_dropped(unified, venue):
    unified.clock.set_now(int((START + 399.5 * HOUR) * 1_000_000))
    unified.bars()  # no end is asked for here, so the venue sends its last bar, too
    assert len(unified.stored()) == 399


def test_a_raw_answer_with_the_forming_bar_loses_it(venue, store):
    fetcher = Fetcher(venue, store, hours=10.5)
    rows = venue.spot["BTCUSDT", "1h"]
    venue.script["data", 1] = Fault("rows", rows=lambda _right: rows[:11])
    assert fetcher.bars().rows == 10


def test_a_clock_that_runs_ahead_does_not_close_a_bar(fetcher, venue):
    venue.now_ms = START + 20 * HOUR + 1000  # says the Date header; ours is 400 hours on
    assert fetcher.bars().rows == 20
    venue.now_ms = START + 25 * HOUR
    assert fetcher.bars().rows == 25


def test_the_last_closed_bar_may_be_published_late(fetcher, venue):
    rows = venue.spot["BTCUSDT", "1h"]
    venue.spot["BTCUSDT", "1h"] = rows[:399]
    assert fetcher.bars().rows == 399
    venue.spot["BTCUSDT", "1h"] = rows
    assert fetcher.bars().added == 1
    assert fetcher.stored().notes["gaps"] == "[]"


# --- gaps and repetitions --------------------------------------------------------------------


def test_gaps_are_recorded_after_a_second_request(fetcher, venue):
    rows = venue.spot["BTCUSDT", "1h"]
    venue.spot["BTCUSDT", "1h"] = rows[:30] + rows[33:200] + rows[320:]
    done = fetcher.bars()
    expected = (
        Gap(START + 30 * HOUR, 3, confirmed=True),
        Gap(START + 200 * HOUR, 120, confirmed=True),
    )
    assert done.gaps == expected
    assert json.loads(fetcher.stored().notes["gaps"]) == [
        {"start": START + 30 * HOUR, "count": 3, "confirmed": True},
        {"start": START + 200 * HOUR, "count": 120, "confirmed": True},
    ]
    assert_holds(fetcher.stored(), venue.spot["BTCUSDT", "1h"])
    starts = [int(r.params["startTime"]) for r in venue.of_group("data")]
    assert len(starts) - len(set(starts)) == 2  # one repetition for each page with a hole
    venue.reset()
    assert fetcher.bars().requests == 0


def test_a_hole_that_the_second_request_fills_is_none(fetcher, venue):
    venue.script["data", 2] = Fault("rows", rows=lambda right: right[:10] + right[20:])
    done = fetcher.bars()
    assert done.gaps == ()
    assert_holds(fetcher.stored(), venue.spot["BTCUSDT", "1h"])


def test_an_empty_page_is_requested_twice_before_it_is_believed(fetcher, venue):
    venue.script["data", 3] = Fault("rows", rows=lambda _right: [])
    assert fetcher.bars().gaps == ()
    assert len(fetcher.stored()) == 400


def test_gaps_of_bars_from_elsewhere_are_kept_apart(fetcher, venue):
    fetcher.bars(until_ms=START + 100 * HOUR)
    table = fetcher.stored().table
    holed = table.filter([not 40 <= row < 50 for row in range(100)])
    fetcher.store.write(Bars(SPOT, H1, holed))  # without notes, as an import leaves it
    rows = venue.spot["BTCUSDT", "1h"]
    venue.spot["BTCUSDT", "1h"] = rows[:200] + rows[201:]
    assert fetcher.bars().gaps == (
        Gap(START + 40 * HOUR, 10, confirmed=False),
        Gap(START + 200 * HOUR, 1, confirmed=True),
    )


def test_identical_repetitions_are_removed(fetcher, venue):
    rows = venue.spot["BTCUSDT", "1h"]
    venue.script["data", 1] = Fault("rows", rows=lambda right: right[:5] + right[4:])
    venue.script["data", 3] = Fault(
        "rows", rows=lambda right: rows[90:100] + right
    )  # of the page before
    assert fetcher.bars().added == 400
    assert_holds(fetcher.stored(), rows)


def changed(row, place, value):
    return [*row[:place], value, *row[place + 1 :]]


@pytest.mark.refusal
@pytest.mark.parametrize("script", ["same page", "next page"])
def test_contradicting_repetitions_are_refused(fetcher, venue, script):
    rows = venue.spot["BTCUSDT", "1h"]
    wrong = changed(rows[99], 4, "1.25")
    if script == "same page":
        venue.script["data", 2] = Fault("rows", rows=lambda right: [*right, wrong])
    else:
        venue.script["data", 3] = Fault("rows", rows=lambda right: [wrong, *right])
    error = refused(fetcher.bars)
    assert str(error) == (
        "two reports of BTC/USDT 1h at 2021-01-05T03:00:00Z must agree; "
        f"found `close` = {float(rows[99][4])!r} and then 1.25. Nothing was overwritten. If the "
        "stored data come from another exchange or were taken before the bar had closed, move "
        "that file away and fetch again. [venue-conflict]"
    )
    assert len(fetcher.stored()) == (50 if script == "same page" else 100)  # the pages before


@pytest.mark.parametrize("since", [START, START + 100 * HOUR])
def test_stored_bars_that_the_exchange_denies_are_refused(fetcher, venue, since):
    fetcher.bars(since_ms=START + 100 * HOUR, until_ms=START + 200 * HOUR)
    before = files(fetcher.store.root)
    seam = 100 if since == START else 199
    rows = venue.spot["BTCUSDT", "1h"]
    venue.spot["BTCUSDT", "1h"] = [
        changed(row, 8, row[8] + 1) if number == seam else row for number, row in enumerate(rows)
    ]
    error = refused(lambda: fetcher.bars(since_ms=since, until_ms=None))
    assert (error.code, "`trades`" in error.found) == ("venue-conflict", True)
    assert files(fetcher.store.root).items() >= before.items()


def test_fewer_stored_columns_stay_fewer(fetcher, unified, venue):
    unified.bars(until_ms=START + 100 * HOUR)
    fetcher.bars()
    assert_holds(fetcher.stored(), venue.spot["BTCUSDT", "1h"], REQUIRED)


def test_stored_columns_are_compared_by_name(fetcher, venue):
    columns = (*REQUIRED, "trades", "taker_buy_quote")
    fetcher.bars(until_ms=START + 100 * HOUR)
    fetcher.store.write(Bars(SPOT, H1, fetcher.stored().table.select(columns)))
    fetcher.bars()
    assert fetcher.stored().columns == columns
    expected = [row[8] for row in venue.spot["BTCUSDT", "1h"]]
    assert fetcher.stored().table["trades"].to_pylist() == expected


@pytest.mark.refusal
def test_an_exchange_that_lacks_a_stored_column_is_refused(fetcher, unified):
    fetcher.bars(until_ms=START + 100 * HOUR)
    error = refused(unified.bars)
    assert isinstance(error, DataError)
    assert str(error) == (
        f"unified must give every column that {fetcher.store.path(SPOT, H1)} has; found "
        "quote_volume, trades, taker_buy_base, taker_buy_quote missing. Fetch from the exchange "
        "the file came from, or move the file away. [data-column]"
    )


# --- nonsense --------------------------------------------------------------------------------


def minutes(right):
    return [changed(changed(row, 0, START + n * 60_000 + 60_000), 6, START)
            for n, row in enumerate(right)]  # fmt: skip


NONSENSE = [
    ("unsorted", lambda r: [r[1], r[0], *r[2:]], "2021-01-01T00:00:00Z after 2021-01-01T01:00:00Z"),
    ("misaligned", minutes, "row 0 at 2021-01-01T00:01:00Z, where no 1h bar opens"),
    (
        "too long",
        lambda r: [changed(row, 6, row[0] + 2 * HOUR - 1) for row in r[::2]],
        f"row 0 from 2021-01-01T00:00:00Z to {START + 2 * HOUR - 1}, which is no 1h bar",
    ),
    ("spaced", lambda r: r[::2], "bars 7200000 ms apart"),
    (
        "before",
        lambda r: [changed(changed(r[0], 0, START - HOUR), 6, START - 1), *r],
        "a bar of 2020-12-31T23:00:00Z, outside of the requested span",
    ),
    (
        "future",
        lambda r: [*r, changed(changed(r[0], 0, 4102444800000), 6, 4102448399999)],
        "a bar of 2100-01-01T00:00:00Z, outside of the requested span",
    ),
    ("text", lambda r: [changed(r[0], 1, "n/a"), *r[1:]], "`open` = 'n/a' at 2021-01-01T00:00:00Z"),
    ("none", lambda r: [changed(r[0], 5, None)], "`volume` = None at 2021-01-01T00:00:00Z"),
    ("nan", lambda r: [changed(r[0], 4, "nan")], "`close` = 'nan' at 2021-01-01T00:00:00Z"),
    ("inf", lambda r: [changed(r[0], 4, "1e999")], "`close` = '1e999' at 2021-01-01T00:00:00Z"),
    ("flag", lambda r: [changed(r[0], 4, True)], "`close` = True at 2021-01-01T00:00:00Z"),
    ("count", lambda r: [changed(r[0], 8, 1.5)], "`trades` = 1.5 at 2021-01-01T00:00:00Z"),
    ("time", lambda r: [changed(r[0], 0, str(START))], f"row 0 with the time '{START}'"),
    ("micro", lambda r: [changed(r[0], 0, START * 1000)], "row 0 from "),
    ("short row", lambda r: [r[0][:6]], "row 0 = [1609459200000, "),
    ("object", lambda r: {"rows": r}, "a dict instead of a list of bars"),
    ("objects", lambda _r: [{"open": 1}], "row 0 = {'open': 1}"),
]


@pytest.mark.parametrize(
    ("rows", "problem"), [case[1:] for case in NONSENSE], ids=[c[0] for c in NONSENSE]
)
def test_nonsense_is_refused_in_words(fetcher, venue, rows, problem):
    venue.script["data", 1] = Fault("rows", rows=rows)
    error = refused(fetcher.bars)
    assert isinstance(error, VenueError)
    assert error.code == "venue-response"
    assert error.found.startswith(problem)
    assert error.wrong == "the answer of binance for BTC/USDT 1h must be what was requested"
    assert not fetcher.store.path(SPOT, H1).exists()
    assert len(venue.of_group("data")) == 1


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (lambda r: [changed(r[0], 1, "n/a"), *r[1:]], "`open` = None at 2021-01-01T00:00:00Z"),
        (lambda r: r[::2], "bars 7200000 ms apart"),
        (
            lambda r: [changed(row, 0, row[0] - 900 * HOUR) for row in r],
            "no bar from 2021-01-01T00:00:00Z on, but something else",
        ),
        (lambda _r: {"rows": 1}, "no bar from 2021-01-01T00:00:00Z on, but something else"),
        (lambda _r: [5], "no bar from 2021-01-01T00:00:00Z on, but something else"),
    ],
)
def test_nonsense_is_refused_in_the_unified_way_too(unified, venue, rows, problem):
    venue.always["data"] = Fault("rows", rows=rows)
    error = refused(unified.bars)
    assert error.code == "venue-response"
    assert error.found == problem
    assert not unified.store.path(SPOT, H1).exists()


@pytest.mark.parametrize("kind", ["raw", "unified"])
@pytest.mark.parametrize(
    "fault",
    [Fault("text", body="<html>maintenance</html>"), Fault("text", body=""), Fault("cut"),
     Fault("text", body="null"), Fault("text", body="{}"), Fault("text", body="[1,")],
    ids=["html", "empty", "cut", "null", "object", "torn"],
)  # fmt: skip
def test_an_answer_that_is_no_json_is_tried_again_and_never_read_as_no_bars(
    kind, fault, request, venue
):
    fetcher = request.getfixturevalue({"raw": "fetcher", "unified": "unified"}[kind])
    venue.script["data", 2] = fault
    assert (fetcher.bars().retries, len(fetcher.stored())) == (1, 400)
    other = Fetcher(venue, Store(fetcher.store.root / "other"))
    other.client = fetcher.client
    venue.reset()
    venue.always["data"] = fault
    error = refused(lambda: other.bars(retry=RetryPolicy(tries=3)))
    assert (error.code, error.found) == ("venue-response", "no JSON in 3 tries")
    assert len(venue.of_group("data")) == 3


# --- the symbol ------------------------------------------------------------------------------


@pytest.mark.refusal
def test_an_unknown_symbol_is_refused_with_the_nearest(venue, store):
    error = refused(Fetcher(venue, store, symbol="BTC/USDC").bars)
    assert isinstance(error, VenueError)
    assert str(error) == (
        "BTC/USDC must be a market of binance; found no such symbol among 1. "
        "Did you mean `BTC/USDT`? [venue-symbol]"
    )
    assert not store.root.exists()
    assert venue.of_group("data") == []


def test_a_symbol_that_vanishes_on_the_way_is_refused(fetcher, venue):
    fetcher.client.load_markets()
    del venue.spot["BTCUSDT", "1h"]
    error = refused(fetcher.bars)
    assert error.code == "venue-symbol"
    assert "-1121" in error.found
    assert len(venue.of_group("data")) == 1


@pytest.mark.refusal
def test_a_malformed_symbol_never_reaches_the_exchange(venue, store):
    error = refused(Fetcher(venue, store, symbol="BTCUSDT").bars)
    assert error.code == "data-symbol"
    assert venue.requests == []


@pytest.mark.refusal
def test_an_interval_the_exchange_lacks_is_refused(fetcher):
    with pytest.raises(ChoiceError) as caught:
        fetch_bars(fetcher.client, fetcher.store, SPOT, Interval.parse("7m"), since_ms=START,
                   clock=fetcher.clock, generator=Generators(0).numpy("fetch"))  # fmt: skip
    assert "the interval must be one that binance offers; found `7m`. Choose from 1s, 1m," in str(
        caught.value
    )


@pytest.mark.refusal
def test_a_first_fetch_must_know_where_to_begin(fetcher):
    with pytest.raises(ArgumentError) as caught:
        fetcher.bars(since_ms=None)
    assert str(caught.value) == (
        "a first fetch must know where to begin; found no stored BTC/USDT 1h and no `since`. Pass "
        "`--since 2020-01-01`, or the day from which you want the bars. [missing-argument]"
    )


@pytest.mark.refusal
def test_an_unknown_exchange_is_refused_with_the_nearest():
    with pytest.raises(ChoiceError) as caught:
        connect("binanse", [SPOT])
    assert str(caught.value).endswith("found `binanse`. Did you mean `binance`? [unknown-choice]")


@pytest.mark.refusal
def test_without_ccxt_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ccxt", None)
    with pytest.raises(ConfigError) as caught:
        connect("binance", [SPOT])
    assert str(caught.value) == (
        "a connection to an exchange needs the package ccxt; found no such package in this "
        "environment. Run `pip install 'stormsail[exchange]'`. [missing-extra]"
    )


@pytest.mark.parametrize("url", ["127.0.0.1:80", "ftp://x", "http://", "http://x/path"])
def test_a_base_address_is_a_scheme_and_a_host(url):
    with pytest.raises(ConfigError, match="a base address must be a scheme"):
        connect("binance", [SPOT], base_url=url)


def test_the_base_address_replaces_every_host():
    for exchange in ("binance", "binanceusdm", "kraken", "bybit", "okx", "coinbase"):
        client = connect(exchange, [SPOT], base_url="http://127.0.0.1:1")
        addresses = json.dumps(client.urls["api"])
        assert addresses.count("://") == addresses.count("http://127.0.0.1:1"), exchange
        assert addresses.count("://") > 0


# --- failures of the way ---------------------------------------------------------------------


PASSING = {
    "reset": Fault("reset"),
    "torn": Fault("torn"),
    "hang": Fault("hang", seconds=0.5),
    "429": Fault("status", status=429, body='{"code":-1003,"msg":"Too many requests"}'),
    "500": Fault("status", status=500, body="<html>"),
    "502": Fault("status", status=502, body="<html>"),
    "503": Fault("status", status=503, body='{"code":-1001,"msg":"Internal error"}'),
    "504": Fault("status", status=504, body=""),
    "408": Fault("status", status=408, body='{"code":-1007,"msg":"Timeout"}'),
}


@pytest.mark.parametrize("name", PASSING)
def test_what_passes_is_waited_for(name, fetcher, venue):
    fetcher.client.timeout = 200
    venue.script = {("data", n): PASSING[name] for n in (1, 4, 5)}
    before = fetcher.clock.now_ns()
    done = fetcher.bars()
    assert_holds(fetcher.stored(), venue.spot["BTCUSDT", "1h"])
    assert (done.retries, len(venue.of_group("data"))) == (3, 8 + 3)
    waited = (fetcher.clock.now_ns() - before) / 1e9
    assert 0.5 + 0.5 + 1.0 <= waited <= 1.0 + 1.0 + 2.0  # 1 s twice, 2 s once, jitter to a half


@pytest.mark.parametrize("name", PASSING)
def test_what_does_not_pass_is_given_up_in_words(name, fetcher, venue):
    fetcher.client.timeout = 100
    venue.script = {("data", n): PASSING[name] for n in range(3, 100)}
    error = refused(lambda: fetcher.bars(retry=RetryPolicy(tries=3)))
    assert error.code == ("venue-rate-limit" if name == "429" else "venue-unreachable")
    assert error.found.endswith("after 3 tries")
    assert len(venue.of_group("data")) == 2 + 3
    assert len(fetcher.stored()) == 100  # what had come is kept
    venue.reset()
    assert fetcher.bars().added == 300


def test_a_refused_connection_is_unreachable(fetcher, venue):
    fetcher.client.load_markets()
    fetcher.client.urls["api"]["public"] = "http://127.0.0.1:9/api/v3"  # discard: nobody listens
    error = refused(lambda: fetcher.bars(retry=RetryPolicy(tries=2)))
    assert error.code == "venue-unreachable"


def test_waits_double_and_the_jitter_comes_from_the_seed(fetcher, venue):
    venue.always["data"] = PASSING["500"]
    fetcher.client.load_markets()
    slept = []
    fetcher.clock.sleep = slept.append
    refused(lambda: fetcher.bars(retry=RetryPolicy(tries=5, longest_s=4.0)))
    jitter = Generators(0).numpy("fetch").random(4)
    assert slept == [s * (0.5 + 0.5 * u) for s, u in zip((1, 2, 4, 4), jitter, strict=True)]


def too_many(retry_after):
    return Fault("status", status=429, headers={"Retry-After": retry_after})


def test_retry_after_in_seconds_is_obeyed(fetcher, venue):
    venue.script["data", 2] = too_many("37")
    slept = []
    fetcher.clock.sleep = slept.append
    assert fetcher.bars().retries == 1
    assert slept == [37.0]


def test_a_demand_counts_for_the_answer_that_made_it_only(fetcher, venue):
    venue.script = {("data", 2): too_many("60"), ("data", 3): Fault("reset")}
    slept = []
    fetcher.clock.sleep = slept.append
    assert fetcher.bars().retries == 2
    assert slept[0] == 60.0
    assert 1.0 <= slept[1] <= 2.0  # the lost connection demanded nothing


def test_retry_after_as_a_date_is_obeyed(fetcher, venue):
    fetcher.clock.set_now((START + 500 * HOUR) * 1_000_000)
    venue.script["data", 2] = too_many(
        "Thu, 21 Jan 2021 20:00:30 GMT"
    )  # 500 h after the start, and 30 s
    slept = []
    fetcher.clock.sleep = slept.append
    fetcher.bars()
    assert slept == [30.0]


def test_an_absurd_retry_after_falls_back_to_our_own_wait(fetcher, venue):
    venue.script["data", 2] = too_many("soon")
    slept = []
    fetcher.clock.sleep = slept.append
    fetcher.bars()
    assert [0.5 <= wait <= 1.0 for wait in slept] == [True]


@pytest.mark.refusal
def test_a_demand_beyond_our_patience_ends_the_fetch_and_says_when(fetcher, venue):
    venue.script["data", 3] = too_many("3600")
    error = refused(fetcher.bars)
    assert str(error) == (
        "binance must have requests left for BTC/USDT 1h; found binance 429 Too Many Requests {}, "
        "not before 2021-01-17T17:00:00Z. Run the command again later; what was fetched is kept. "
        "Other programs on this address use up the same limit. [venue-rate-limit]"
    )
    assert (len(venue.of_group("data")), len(fetcher.stored())) == (3, 100)


BANS = [
    (
        Fault("status", status=418, body='{"code":-1003,"msg":"IP banned until 1610900000000."}'),
        "until 2021-01-17T16:13:20Z",
    ),
    (Fault("status", status=418, headers={"Retry-After": "120"}), "until 2021-01-17T16:02:00Z"),
    (Fault("status", status=418), "for a time it does not state"),
]


@pytest.mark.refusal
@pytest.mark.parametrize(("fault", "until"), BANS)
def test_a_ban_stops_everything_at_once_and_says_until_when(fetcher, venue, fault, until):
    venue.script["data", 5] = fault
    error = refused(fetcher.bars)
    assert str(error) == (
        "binance must accept requests from this address to give BTC/USDT 1h; found HTTP 418, "
        f"banned {until}. No further request was sent. Wait until then, and stop other programs "
        "that use the same address: asking during a ban prolongs it. [venue-ban]"
    )
    assert venue.banned == 0
    assert (len(venue.of_group("data")), len(fetcher.stored())) == (5, 200)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (401, '{"code":-2014,"msg":"API-key format invalid."}'),
        (403, "<html>"),
        (404, "<html>"),
        (451, '{"code":0,"msg":"Service unavailable from a restricted location"}'),
        (400, '{"code":-1100,"msg":"Illegal characters"}'),
    ],
)
def test_what_repeating_will_not_cure_is_not_repeated(status, body, fetcher, venue):
    venue.always["data"] = Fault("status", status=status, body=body)
    error = refused(fetcher.bars)
    assert error.code == "venue-refused"
    assert len(venue.of_group("data")) == 1


def test_a_list_of_markets_that_fails_is_tried_again(fetcher, venue):
    faults = (PASSING["502"], Fault("text", body="<html>"), PASSING["reset"])
    venue.script = {("info", number): fault for number, fault in enumerate(faults, 1)}
    assert (fetcher.bars().added, len(venue.of_group("info"))) == (400, 4)


def test_an_empty_list_of_markets_is_refused(fetcher, venue):
    venue.script["info", 1] = Fault("rows", rows=lambda _right: {"symbols": []})
    error = refused(fetcher.bars)
    assert (error.code, error.found) == ("venue-response", "an empty list")


@pytest.mark.parametrize(
    "settings", [{"tries": 0}, {"first_s": -1.0}, {"first_s": 9.0, "longest_s": 1.0}]
)
def test_a_retry_policy_has_a_range(settings):
    with pytest.raises(RangeError):
        RetryPolicy(**settings)


# --- the journal -----------------------------------------------------------------------------


def test_an_interrupt_keeps_what_has_come(venue, tmp_path):
    whole, cut = (Fetcher(venue, Store(tmp_path / name)) for name in ("whole", "cut"))
    whole.bars()

    def interrupt(progress):
        if progress.done >= 250:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut.bars(on_progress=interrupt)
    assert len(cut.stored()) == 250
    assert not journal_path(cut.store.path(SPOT, H1)).exists()
    cut.bars()
    assert files(cut.store.root) == files(whole.store.root)


def test_an_interrupt_before_the_stored_bars_leaves_them_alone(venue, tmp_path):
    whole, cut = (Fetcher(venue, Store(tmp_path / name)) for name in ("whole", "cut"))
    whole.bars()
    cut.bars(since_ms=START + 200 * HOUR)
    before = cut.store.path(SPOT, H1).read_bytes()

    def interrupt(progress):
        if progress.done >= 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut.bars(on_progress=interrupt)
    assert cut.store.path(SPOT, H1).read_bytes() == before  # a break in it would look like a hole
    venue.reset()
    assert cut.bars().added == 200
    assert len(venue.of_group("data")) == 3  # 100 are in the journal; 100 and both seams remain
    assert files(cut.store.root) == files(whole.store.root)


def test_parts_of_another_exchange_and_rubbish_are_not_used(fetcher, venue):
    path = fetcher.store.path(SPOT, H1)
    folder = journal_path(path)
    folder.mkdir(parents=True)
    (folder / f"{START}-{START + HOUR}.parquet").write_bytes(b"PAR1 no")
    (folder / "notes.txt").write_text("x")
    (path.parent / ".tmp-1-1").write_text("left by a killed writer")
    assert fetcher.bars().added == 400
    assert_holds(fetcher.stored(), venue.spot["BTCUSDT", "1h"])
    assert [entry.name for entry in path.parent.iterdir()] == ["1h.parquet"]


def test_a_part_with_another_stamp_is_not_used(fetcher, venue):
    fetcher.bars(until_ms=START + 100 * HOUR)
    table = fetcher.stored().table
    fetcher.store.path(SPOT, H1).unlink()
    wrong = table.set_column(1, "open", pa.array([1.0] * 100))
    with open_journal(fetcher.store.path(SPOT, H1), "kraken BTC/USDT 1h") as journal:
        journal.write(Part(Span(START, START + 100 * HOUR), wrong))
        assert [part.table for part in journal.parts()] == [wrong]
    fetcher.bars()
    assert_holds(fetcher.stored(), venue.spot["BTCUSDT", "1h"])


@pytest.mark.refusal
def test_two_fetches_of_the_same_are_refused(fetcher, monkeypatch):
    monkeypatch.setattr(journal_module, "_WAIT_S", 0.05)
    path = fetcher.store.path(SPOT, H1)
    with open_journal(path, "another"):
        error = refused(fetcher.bars)
    words = str(error).partition(", which holds it since ")
    assert words[0] == (
        f"{journal_path(path)} must be used by one fetch at a time; found process {os.getpid()} "
        f"on {socket.gethostname()} (stormsail fetch)"
    )
    assert words[2][20:] == ". Wait for the other fetch to end, or stop it. [data-busy]"
    assert [entry.name for entry in path.parent.iterdir() if entry.name.endswith("lock")] == []


def test_bars_that_are_imported_during_a_fetch_are_kept(fetcher):
    """The fetch wants 100 bars, an import adds 120 meanwhile: all 120 are there in the end."""
    fetcher.bars()
    whole = fetcher.stored()
    fetcher.store.write(replace(whole, table=whole.table.slice(0, 50), notes={}))
    calls = []

    def imported(progress):
        calls.append(progress)
        notes = {"source": "file.csv"}
        fetcher.store.write(replace(whole, table=whole.table.slice(0, 120), notes=notes))

    fetched = fetcher.bars(until_ms=START + 100 * HOUR, on_progress=imported)
    assert calls
    assert (fetched.rows, fetched.added) == (120, 0)
    assert fetcher.stored().table.equals(whole.table.slice(0, 120))
    assert fetcher.stored().notes["source"] == "file.csv"


def test_rates_that_are_imported_during_a_fetch_are_kept(venue, store):
    fetcher = Fetcher(venue, store, symbol=PERP)
    fetcher.funding()
    whole = store.read_funding(PERP).table
    store.write_funding(Funding(PERP, whole.slice(10, 10)))

    def imported(_progress):
        if len(store.read_funding(PERP)) == 10:
            store.write_funding(Funding(PERP, whole.slice(5, 15)))

    fetcher.funding(since_ms=int(whole["ts"][8].as_py()), page=5, on_progress=imported)
    assert store.read_funding(PERP).table.equals(whole.slice(5))


def test_a_full_disk_is_loud_and_harmless(fetcher, venue, monkeypatch):
    fetcher.bars(until_ms=START + 100 * HOUR)
    before = files(fetcher.store.root)

    def full(_folder, _name, _data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "replace_file", full)
        error = refused(fetcher.bars)
    assert (error.code, "No space left on device" in error.found) == ("data-write", True)
    assert files(fetcher.store.root) == before
    assert fetcher.bars().added == 300


def test_a_part_is_written_every_few_pages(fetcher, venue):
    seen = []
    folder = journal_path(fetcher.store.path(SPOT, H1))
    fetcher.bars(page=10, on_progress=lambda p: seen.append((p.done, len(list(folder.iterdir())))))
    assert seen[PAGES_PER_PART - 2 : PAGES_PER_PART + 1] == [(70, 0), (80, 1), (90, 1)]
    assert seen[-1] == (400, 5)


# --- funding ---------------------------------------------------------------------------------


@pytest.fixture
def perp(venue, store):
    return Fetcher(venue, store, exchange="binanceusdm", symbol=PERP)


def assert_rates(funding, rows):
    assert funding.ts.tolist() == [ts // HOUR * HOUR for ts, _ in rows]  # without the delay
    assert funding.rate.tolist() == [float(rate) for _, rate in rows]


@pytest.mark.parametrize("exchange", ["binance", "binanceusdm"])
def test_funding_rates_arrive_digit_for_digit(exchange, venue, store):
    rows = rates(9, 2500, start=START)
    venue.funding["BTCUSDT"] = rows
    fetcher = Fetcher(venue, store, exchange=exchange, symbol=PERP, hours=20_000)
    done = fetcher.funding(page=None)
    assert_rates(store.read_funding(PERP), rows)
    assert (done.added, done.rows, len(venue.of_group("data"))) == (2500, 2500, 3)
    assert done.path == store.funding_path(PERP)


def test_funding_is_continued_at_both_ends(perp, venue):
    rows = venue.funding["BTCUSDT"]
    perp.funding(since_ms=START + 100 * HOUR, until_ms=START + 200 * HOUR)
    middle = [row for row in rows if START + 100 * HOUR <= row[0] < START + 200 * HOUR]
    assert_rates(perp.store.read_funding(PERP), middle)
    perp.funding(since_ms=None)
    perp.funding(since_ms=START)
    assert_rates(perp.store.read_funding(PERP), rows)
    venue.reset()
    before = files(perp.store.root)
    assert perp.funding(since_ms=None).added == 0
    assert len(venue.of_group("data")) == 1
    assert files(perp.store.root) == before


def test_funding_that_the_exchange_denies_is_refused(perp, venue):
    perp.funding(until_ms=START + 200 * HOUR)
    rows = venue.funding["BTCUSDT"]
    last = sum(ts < START + 200 * HOUR for ts, _ in rows) - 1
    venue.funding["BTCUSDT"] = [(ts, "0.5" if n == last else r) for n, (ts, r) in enumerate(rows)]
    error = refused(perp.funding)
    assert (error.code, iso(rows[last][0] // HOUR * HOUR) in error.wrong) == (
        "venue-conflict",
        True,
    )
    assert_rates(perp.store.read_funding(PERP), rows[: last + 1])


def test_an_exchange_that_gives_the_newest_rates_first_loses_none(perp, venue):
    rows, whole = venue.funding["BTCUSDT"], perp.client.fetch_funding_rate_history

    def newest(symbol, since, limit, params):
        answer = whole(symbol, since, 1000, params)[-limit:]
        perp.client.last_json_response = {"rows": len(answer)}
        return answer

    perp.client.fetch_funding_rate_history = newest
    perp.client.id = "newest"
    assert perp.funding().added == 50
    assert_rates(perp.store.read_funding(PERP), rows)


def test_bars_with_errors_are_not_stored(fetcher, venue):
    fetcher.bars(until_ms=START + 100 * HOUR)
    before = fetcher.store.path(SPOT, H1).read_bytes()
    venue.spot["BTCUSDT", "1h"][150][2] = "0.00000001"  # a high below everything
    error = refused(fetcher.bars)
    assert error.code == "data-defects"
    assert "row 150 2021-01-07T06:00:00Z" in error.found
    assert fetcher.store.path(SPOT, H1).read_bytes() == before


def test_warnings_of_the_checks_are_returned(fetcher, venue):
    assert fetcher.bars(until_ms=START + HOUR).warnings == ("D12 one-row, 1x, first at 1 row",)
    assert fetcher.bars().warnings == ()


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (lambda r: [r[0] | {"symbol": "ETHUSDT"}, *r[1:]], "1 rates of other symbols or times"),
        (lambda r: [r[0] | {"fundingRate": "n/a"}, *r[1:]], "row 0 = {'info': "),
        (lambda r: [r[0] | {"fundingRate": None}, *r[1:]], "row 0 = {'info': "),
        (
            lambda r: [*r[:-1], r[0] | {"fundingTime": 4102444800000}],
            "a rate of 2100-01-01T00:00:00Z",
        ),
        (lambda _r: {"rows": 1}, "something ccxt cannot read (KeyError)"),
    ],
)
def test_nonsense_in_place_of_funding_is_refused(perp, venue, rows, problem):
    venue.script["data", 1] = Fault("rows", rows=rows)
    error = refused(perp.funding)
    assert error.code == "venue-response"
    assert error.found.startswith(problem)
    assert perp.store.read_funding(PERP) is None


def test_failures_on_the_way_to_funding_are_waited_for(perp, venue):
    venue.script = {("data", 1): PASSING["429"], ("data", 3): PASSING["502"]}
    assert (perp.funding().retries, len(perp.store.read_funding(PERP).ts)) == (2, 50)


@pytest.mark.refusal
def test_spot_has_no_funding(fetcher):
    error = refused(fetcher.funding)
    assert str(error) == (
        "BTC/USDT must be a market of binance; found a market without funding rates. Check the "
        "symbol on the exchange's page. [venue-symbol]"
    )


@pytest.mark.refusal
def test_a_first_fetch_of_funding_must_know_where_to_begin(perp):
    assert str(refused(lambda: perp.funding(since_ms=None))) == (
        "a first fetch must know where to begin; found no stored funding rates of BTC/USDT:USDT "
        "and no `since`. Pass `--since 2020-01-01`, or the day from which you want the rates. "
        "[missing-argument]"
    )


def test_a_time_far_from_a_full_minute_stays_as_it_is(perp, venue):
    ts = START + 8 * HOUR
    venue.funding["BTCUSDT"] = [(ts - 999, "0.1"), (ts + 60_999, "0.2"), (ts + 121_000, "0.3")]
    perp.funding()
    assert perp.store.read_funding(PERP).ts.tolist() == [ts, ts + 60_000, ts + 121_000]


@pytest.mark.parametrize("place", [0, -1])
def test_imported_rates_at_the_full_hour_are_the_same_settlements(perp, venue, place):
    rows = venue.funding["BTCUSDT"]
    ts, rate = rows[place]
    table = {"ts": [ts // HOUR * HOUR], "funding_rate": [float(rate)]}
    perp.store.write_funding(Funding(PERP, pa.table(table)))
    assert perp.funding().rows == len(rows)
    assert_rates(perp.store.read_funding(PERP), rows)


def test_contradicting_stored_funding_is_not_overwritten(perp, venue):
    rows = venue.funding["BTCUSDT"]
    table = {"ts": [rows[10][0] // HOUR * HOUR], "funding_rate": [0.25]}
    perp.store.write_funding(Funding(PERP, pa.table(table)))
    assert refused(perp.funding).code == "venue-conflict"
    assert perp.store.read_funding(PERP).rate.tolist() == [0.25]


# --- arithmetic ------------------------------------------------------------------------------


def test_unions_and_what_is_missing():
    a, b, c = Span(0, 10), Span(10, 20), Span(30, 40)
    assert union([c, b, Span(5, 5), a]) == [Span(0, 20), c]
    assert union([Span(0, 40), Span(5, 10)]) == [Span(0, 40)]
    assert missing(Span(-5, 50), [c, a, b]) == [Span(-5, 0), Span(20, 30), Span(40, 50)]
    assert missing(Span(2, 8), [a]) == []
    assert missing(Span(15, 35), [a, b, c]) == [Span(20, 30)]
    assert missing(Span(0, 5), [Span(7, 9)]) == [Span(0, 5)]
    assert missing(Span(0, 5), []) == [Span(0, 5)]


def test_missing_agrees_with_counting():
    generator = Generators(0).numpy("spans")
    for _ in range(300):
        edges = generator.integers(0, 30, (4, 2))
        covered = [Span(int(min(e)), int(max(e))) for e in edges]
        wanted = Span(*sorted(int(x) for x in generator.integers(0, 30, 2)))
        counted = {t for t in range(wanted.start, wanted.end)
                   if not any(s.start <= t < s.end for s in covered)}  # fmt: skip
        spans = missing(wanted, covered)
        assert {t for s in spans for t in range(s.start, s.end)} == counted
        assert spans == union(spans)


def test_the_grid_of_bars():
    week = Interval.parse("1w")
    monday = 1_609_718_400_000  # 2021-01-04
    assert (bar_at_or_after(START, H1), bar_at_or_after(START + 1, H1)) == (START, START + HOUR)
    assert bar_at_or_after(START, week) == monday
    assert closed_end(monday, week) == monday
    assert closed_end(monday - 1, week) == monday - 7 * 24 * HOUR
    assert (closed_end(START + HOUR - 1, H1), closed_end(START, H1)) == (START, START)


def test_gaps_are_confirmed_only_inside_of_what_was_requested():
    ts = np.array([0, 1, 4, 5, 9], dtype=np.int64) * HOUR
    assert gaps(ts, H1, [Span(0, 5 * HOUR)]) == [
        Gap(2 * HOUR, 2, confirmed=True),
        Gap(6 * HOUR, 3, confirmed=False),
    ]
    assert gaps(ts[:0], H1, []) == []


@pytest.mark.parametrize("note", ["", "x", "[1]", '{"a": 1}', "[[1]]", "null", '[["a", 2]]'])
def test_a_foreign_note_means_that_nothing_was_requested(note):
    assert read_requested({"requested": note}) == []


@pytest.mark.parametrize("value", [None, True, [], "", " 1", "1_0", "nan", "0x1", 10**400, "-"])
def test_what_is_no_number_is_none(value):
    assert number_of(value) is None


def test_numbers_may_be_texts():
    assert [number_of(v) for v in ("1", "-0.5", "1e-3", "7.", 2, 2.5)] == [
        1,
        -0.5,
        0.001,
        7,
        2,
        2.5,
    ]
