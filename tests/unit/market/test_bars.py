"""Bars, funding and intervals: form is checked, nothing is converted behind the user's back."""

import dataclasses

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from stormsail.core.errors import DataError
from stormsail.market.bars import Bars, Funding, canonical, check_symbol, from_columns
from stormsail.market.interval import Interval

HOUR = Interval.parse("1h")
START = 1_609_459_200_000  # 2021-01-01T00:00Z


def plain(rows: int = 4, **columns) -> dict[str, list]:
    ts = [START + i * 3_600_000 for i in range(rows)]
    price = [100.0 + i for i in range(rows)]
    return {
        **{"ts": ts, "open": price, "high": [p + 2 for p in price], "low": [p - 2 for p in price]},
        **{"close": [p + 1 for p in price], "volume": [1.0 + i for i in range(rows)]},
        **columns,
    }


def bars(rows: int = 4, **columns) -> Bars:
    return from_columns("BTC/USDT", HOUR, plain(rows, **columns))


def refusal(call) -> DataError:
    with pytest.raises(DataError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize(
    ("text", "milliseconds", "written"),
    [
        ("1m", 60_000, "1m"),
        ("15m", 900_000, "15m"),
        ("60m", 3_600_000, "1h"),
        (" 4h ", 14_400_000, "4h"),
        ("24h", 86_400_000, "1d"),
        ("7d", 604_800_000, "1w"),
        ("90m", 5_400_000, "90m"),
        ("1s", 1_000, "1s"),
        ("90s", 90_000, "90s"),
        ("60s", 60_000, "1m"),
    ],
)
def test_an_interval_is_read_and_written(text, milliseconds, written):
    interval = Interval.parse(text)
    assert interval == Interval(milliseconds)
    assert str(interval) == written
    assert Interval.parse(written) == interval


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "h",
        "0h",
        "01h",
        "1H",
        "1S",
        "1Mo",
        "1ms",
        "1y",
        "-1h",
        "1.5h",
        "1h1h",
        "10000m",
        "1٣m",
    ],
)
def test_what_is_no_interval_is_refused(text):
    assert refusal(lambda: Interval.parse(text)).code == "data-interval"


@pytest.mark.parametrize("milliseconds", [0, -60_000])
def test_an_interval_takes_time(milliseconds):
    assert refusal(lambda: Interval(milliseconds)).code == "data-interval"


@pytest.mark.parametrize(
    ("short", "long", "expected"),
    [
        ("1h", "4h", True),
        ("4h", "1h", False),
        ("1h", "1h", True),
        ("1h", "90m", False),
        ("1d", "1w", True),
        ("2d", "2w", True),
        ("3d", "3w", False),  # 21 days are 7 times 3, but 1970-01-05 is no multiple of 3 days
        ("1w", "2w", True),
        ("1d", "1mo", True),
        ("1h", "3mo", True),
        ("1w", "1mo", False),
        ("1mo", "3mo", True),
        ("3mo", "1mo", False),
        ("2mo", "3mo", False),
        ("1mo", "1d", False),
    ],
)
def test_an_interval_divides_another_only_if_their_grids_meet(short, long, expected):
    assert Interval.parse(short).divides(Interval.parse(long)) is expected


def days(*texts: str) -> np.ndarray:
    return np.array(texts, "datetime64[ms]").astype(np.int64)


@pytest.mark.parametrize(("text", "months"), [("1M", 1), ("1mo", 1), ("3mo", 3), ("12M", 12)])
def test_months_are_read_and_are_no_minutes(text, months):
    """A twelfth of 365.2425 days are 2,629,746 seconds; a year has twelve of them."""
    interval = Interval.parse(text)
    assert (interval.months, interval.milliseconds) == (months, months * 2_629_746_000)
    assert str(interval) == f"{months}mo"
    assert Interval.parse(str(interval)) == interval
    assert interval != Interval.parse("1m")


def test_a_bar_of_months_opens_on_the_first_and_closes_when_the_next_opens():
    month, quarter = Interval.parse("1mo"), Interval.parse("3mo")
    ts = days("2024-01-01", "2024-02-01", "2024-02-29T12:00", "2023-12-31T23:59:59.999")
    assert month.number(ts).tolist() == [648, 649, 649, 647]  # 54 years are 648 months
    assert (
        month.after(ts).tolist()
        == days("2024-02-01", "2024-03-01", "2024-03-01", "2024-01-01").tolist()
    )
    assert month.offset(ts).tolist() == [0, 0, 28 * 86_400_000 + 43_200_000, 31 * 86_400_000 - 1]
    assert quarter.after(ts[:1]).tolist() == days("2024-04-01").tolist()
    gaps = days("2024-01-01", "2024-02-01", "2024-04-01", "2024-04-03")
    one = month.milliseconds
    assert month.steps(gaps).tolist() == [one, 2 * one, 2 * 86_400_000]


def test_methods_of_a_fixed_length_are_plain_arithmetic():
    """1970-01-12 is the second Monday: the weekly bar 1."""
    week = Interval.parse("1w")
    ts = days("1970-01-12", "1970-01-14")
    assert week.number(ts).tolist() == [1, 1]
    assert week.opening(np.array([1])).tolist() == days("1970-01-12").tolist()
    assert week.offset(ts).tolist() == [0, 2 * 86_400_000]
    assert week.after(ts).tolist() == days("1970-01-19", "1970-01-21").tolist()
    assert week.steps(ts).tolist() == [2 * 86_400_000]


@pytest.mark.refusal
def test_what_needs_a_fixed_length_refuses_months():
    error = refusal(lambda: Interval.parse("1mo").check_fixed("a panel"))
    assert str(error) == (
        "a panel must have bars of a fixed length; found `1mo`. Take `1w` or `1d`; bars of months "
        "can be imported, checked and stored. [data-interval]"
    )
    Interval.parse("1w").check_fixed("a panel")


def test_weeks_open_on_mondays():
    origin = np.datetime64(Interval.parse("1w").origin_ms, "ms")
    assert str(origin.astype("datetime64[D]")) == "1970-01-05"
    assert Interval.parse("1d").origin_ms == 0


@pytest.mark.parametrize("symbol", ["BTC/USDT", "1000PEPE/USDT:USDT", "BTC/USD:BTC"])
def test_a_symbol_of_ccxt_is_a_symbol(symbol):
    assert check_symbol(symbol) == symbol


@pytest.mark.parametrize(
    "symbol",
    ["BTCUSDT", "btc/usdt", "BTC/", "/USDT", "BTC/USDT:", "BTC/USDT\n", "../USDT", "A/B/C", ""],
)
def test_anything_else_is_no_symbol(symbol):
    assert refusal(lambda: check_symbol(symbol)).code == "data-symbol"


def test_columns_come_in_their_order_with_their_types_and_strangers_are_dropped():
    columns = plain(trades=[1, 2, 3, 4], colour=["r", "g", "b", "k"])
    shuffled = pa.table(dict(reversed(columns.items())))
    table = canonical(shuffled, place="x")
    assert table.column_names == ["ts", "open", "high", "low", "close", "volume", "trades"]
    assert [str(kind) for kind in table.schema.types] == ["int64", *["double"] * 5, "int64"]


@pytest.mark.refusal
def test_a_missing_column_is_named():
    columns = plain()
    del columns["volume"]
    assert str(refusal(lambda: canonical(pa.table(columns), place="BTC/USDT"))) == (
        "BTC/USDT must have each of the columns ts, open, high, low, close, volume once; found "
        "ts, open, high, low, close; volume missing. Rename the source's columns, or name them "
        "with `--columns`. [data-column]"
    )


def test_a_column_that_is_there_twice_is_refused():
    arrays = [pa.array(values) for values in plain().values()]
    table = pa.Table.from_arrays([*arrays, arrays[1]], names=[*plain(), "open"])
    error = refusal(lambda: canonical(table, place="x"))
    assert error.code == "data-column"
    assert error.found.endswith("open twice")


@pytest.mark.parametrize(
    "kind",
    [pa.timestamp("us"), pa.timestamp("ms", "UTC"), pa.timestamp("s"), pa.date64(), pa.string()],
)
def test_times_of_another_type_are_refused_because_their_unit_would_be_lost(kind):
    table = pa.table(plain())
    column = table["ts"].cast(kind) if kind == pa.string() else table["ts"].cast(pa.timestamp("ms"))
    column = column if kind == pa.string() else column.cast(kind, safe=False)
    error = refusal(lambda: Bars("BTC/USDT", HOUR, table.set_column(0, "ts", column)))
    assert error.code == "data-type"


@pytest.mark.parametrize(
    "column",
    [
        pa.array([START, None, START + 1, START + 2]),
        pa.array([START + 0.5, START + 1, START + 2, START + 3]),
        pa.array([[1], [2], [3], [4]]),
    ],
)
def test_times_that_are_missing_broken_or_nested_are_refused(column):
    table = pa.table(plain()).set_column(0, "ts", column)
    assert refusal(lambda: Bars("BTC/USDT", HOUR, table)).code == "data-type"


@pytest.mark.parametrize(
    "column",
    [
        ["1.5", "2", "n/a", "4"],
        [True, False, True, True],
        [[1.0], [2.0], [3.0], [4.0]],
        [b"1", b"2", b"3", b"x"],
        [1 << 60, (1 << 60) + 1, 3, 4],  # float64 cannot hold it
    ],
)
def test_prices_that_are_no_numbers_are_refused(column):
    assert refusal(lambda: bars(open=column)).code == "data-type"


@pytest.mark.refusal
def test_disorder_names_row_and_times():
    ts = plain()["ts"]
    error = refusal(lambda: bars(ts=[ts[0], ts[2], ts[1], ts[3]]))
    assert str(error) == (
        "bars must be sorted by open time without duplicates; found BTC/USDT row 2 at "
        "2021-01-01T01:00:00Z after 2021-01-01T02:00:00Z. Run `stormsail check` on the source; "
        "it lists every such row. [data-order]"
    )


def test_disorder_inside_a_second_can_be_seen_in_the_refusal():
    ts = plain()["ts"]
    error = refusal(lambda: bars(ts=[ts[0], ts[1] + 7, ts[1] + 5, ts[3]]))
    assert "at 2021-01-01T01:00:00.005Z after 2021-01-01T01:00:00.007Z" in str(error)


def test_a_duplicate_is_refused_and_extreme_times_do_not_overflow_the_check():
    ts = plain()["ts"]
    assert refusal(lambda: bars(ts=[ts[0], ts[1], ts[1], ts[3]])).code == "data-order"
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    # The difference of these wraps around to a positive number.
    assert refusal(lambda: bars(2, ts=[most, least])).code == "data-order"


def test_bars_keep_their_own_copy_of_the_notes():
    notes = {"a": "1"}
    made = Bars("BTC/USDT", HOUR, pa.table(plain()), notes)
    notes["a"] = "2"
    assert made.notes == {"a": "1"}


@given(
    st.lists(st.integers(0, 50), unique=True, max_size=30), st.integers(-5, 55), st.integers(-5, 55)
)
def test_between_is_the_half_open_span(rows, start, end):
    rows = sorted(rows)
    made = from_columns(
        "BTC/USDT", HOUR, {**plain(len(rows)), "ts": np.array(rows, dtype=np.int64)}
    )
    assert made.between(start, end).ts.tolist() == [row for row in rows if start <= row < end]


def test_the_digest_sees_every_value_and_nothing_else():
    digest = bars().digest()
    assert digest == bars().digest()
    assert digest == bars(6).between(START, START + 4 * 3_600_000).digest()
    chunked = pa.concat_tables([pa.table(plain()).slice(0, 1), pa.table(plain()).slice(1)])
    assert digest == Bars("BTC/USDT", HOUR, chunked, {"note": "x"}).digest()
    others = [
        bars(3),
        bars(trades=[1, 2, 3, 4]),
        dataclasses.replace(bars(), symbol="ETH/USDT"),
        dataclasses.replace(bars(), interval=Interval.parse("2h")),
        *(bars(**{name: [*plain()[name][:3], plain()[name][3] + 1]}) for name in plain()),
    ]
    assert len({digest, *(other.digest() for other in others)}) == len(others) + 1


@pytest.mark.refusal
def test_an_absent_column_says_what_is_here():
    assert str(refusal(lambda: bars().column("trades"))) == (
        "`trades` must be a column of BTC/USDT 1h; found ts, open, high, low, close, volume. "
        "Import a source that has it, or drop the features that need it. [data-column]"
    )


def test_columns_are_float64_and_times_int64():
    made = bars(trades=[1, 2, 3, 4])
    assert made.ts.dtype == np.int64
    assert made.column("trades").dtype == np.float64
    assert made.column("trades").tolist() == [1.0, 2.0, 3.0, 4.0]


def test_no_bars_are_bars_too():
    empty = from_columns("BTC/USDT", HOUR, {name: [] for name in plain()})
    assert (len(empty), empty.ts.tolist(), empty.between(0, 9).ts.tolist()) == (0, [], [])


def test_funding_is_checked_like_bars():
    table = pa.table({"funding_rate": [0.1, -0.2], "ts": [1, 2], "x": ["a", "b"]})
    funding = Funding("BTC/USDT:USDT", table)
    assert (funding.ts.tolist(), funding.rate.tolist(), len(funding)) == ([1, 2], [0.1, -0.2], 2)
    assert funding.table.column_names == ["ts", "funding_rate"]
    for ts, code in (([2, 1], "data-order"), ([1, 1], "data-order"), ([1, None], "data-type")):
        wrong = pa.table({"ts": ts, "funding_rate": [0.1, 0.2]})
        assert refusal(lambda wrong=wrong: Funding("BTC/USDT:USDT", wrong)).code == code
    missing = pa.table({"ts": [1]})
    assert refusal(lambda: Funding("BTC/USDT:USDT", missing)).code == "data-column"
