"""Findings worked out by hand: counts, rows, times and words."""

import numpy as np
import pyarrow as pa
import pytest

from stormsail.core.generators import Generators
from stormsail.market.bars import Bars, Funding
from stormsail.market.checks import (
    Report,
    check_bars,
    check_funding,
    check_funding_table,
    check_table,
)
from stormsail.market.checks.levels import _local_scale
from stormsail.market.interval import Interval

HOUR = Interval.parse("1h")
HOUR_MS = 3_600_000
START = 1_609_459_200_000  # 2021-01-01T00:00:00Z


def bars(close: np.ndarray, ts: np.ndarray | None = None, **columns: object) -> pa.Table:
    """Return bars whose open is the close before, and whose range is exact."""
    opening = np.concatenate((close[:1], close[:-1]))
    table = {
        "ts": START + HOUR_MS * np.arange(len(close)) if ts is None else ts,
        "open": opening,
        "high": np.maximum(opening, close),
        "low": np.minimum(opening, close),
        "close": close,
        "volume": np.full(len(close), 5.0),
    }
    return pa.table({**table, **columns})


def walk(rows: int, sd: float = 0.005, seed: int = 0) -> np.ndarray:
    rng = Generators(seed).numpy("walk")
    return np.round(1000.0 * np.exp(np.cumsum(rng.normal(0.0, sd, rows))), 2)


def check(table: pa.Table, interval: Interval = HOUR, now_ms: int | None = None) -> Report:
    return check_table(table, symbol="BTC/USDT", interval=interval, now_ms=now_ms)


def test_a_gap_names_its_first_missing_bar_and_how_many():
    ts = START + HOUR_MS * np.array([0, 1, 2, 6, 7, 9, 10, 11])  # 3, 4, 5 and 8 are missing
    report = check(bars(np.linspace(100.0, 101.0, 8), ts))
    (gap,) = report.findings
    assert (gap.number, gap.severity, gap.count, gap.detail) == (
        "D35",
        "warning",
        2,
        "4 bars missing, at most 3 from 2021-01-01T03:00:00Z",
    )
    assert [str(place) for place in gap.places] == [
        "row 3 2021-01-01T06:00:00Z 3 missing from 2021-01-01T03:00:00Z",
        "row 5 2021-01-01T09:00:00Z 1 missing from 2021-01-01T08:00:00Z",
    ]


def test_all_places_are_counted_and_five_are_shown():
    close = walk(200)
    volume = np.where(np.arange(200) % 10 == 0, -1.0, 1.0)
    (finding,) = check(bars(close, volume=volume)).findings
    assert (finding.number, finding.count) == ("D21", 20)
    assert [place.row for place in finding.places] == [0, 10, 20, 30, 40]
    assert finding.places[1].value == "volume=-1.0"


def test_one_class_in_two_columns_is_one_finding():
    table = bars(walk(50), quote_volume=np.full(50, np.nan), trades=np.full(50, np.nan))
    (finding,) = check(table).findings
    assert (finding.number, finding.count) == ("D15", 100)


def test_a_crash_is_no_defect():
    close = walk(400)
    close[200:] *= 0.8  # 20 % in one hour, as on 2020-03-12
    close[300:] *= 0.01 ** np.minimum(np.arange(100) / 30.0, 1.0)  # 99 % in thirty hours
    assert check(bars(np.round(close, 8))).findings == ()


def test_a_flash_crash_inside_bars_is_no_spike():
    close = walk(400)
    close[200] *= 0.7  # falls inside bar 200, recovers inside bar 201
    assert check(bars(close)).findings == ()


def test_the_same_move_between_bars_is_a_spike():
    close = walk(400)
    table = bars(close)
    opening, high = table["open"].to_numpy().copy(), table["high"].to_numpy().copy()
    low, late = table["low"].to_numpy().copy(), close.copy()
    for column in (opening, high, low, late):
        column[200] *= 0.7
    columns = {"open": opening, "high": high, "low": low, "close": late}
    report = check(pa.table({**{n: table[n] for n in table.column_names}, **columns}))
    assert [(f.number, f.places[0].row) for f in report.findings] == [("D44", 200)]


def test_the_local_scale_is_the_larger_of_median_and_half_the_mean():
    # 256 moves: 255 of 0.001 and one of 1.0. Median 0.001, half the mean (0.255 + 1) / 512.
    move = np.full(256, 0.001)
    move[100] = 1.0
    scale = _local_scale(move, mean_share=0.5)[np.arange(256)]
    np.testing.assert_allclose(scale, np.full(256, 1.255 / 512), rtol=1e-12)
    np.testing.assert_array_equal(
        _local_scale(move, mean_share=0.0)[np.arange(256)], np.full(256, 0.001)
    )
    # Two blocks: the quiet one is measured by its neighbour.
    both = np.concatenate((np.full(256, 0.001), np.full(256, -0.01)))
    scale = _local_scale(both, mean_share=0.5)[np.arange(512)]
    np.testing.assert_allclose(scale, np.full(512, 0.01), rtol=1e-12)


@pytest.mark.parametrize(("rows", "numbers"), [(11, ()), (12, ("D42",))])
def test_twelve_bars_at_one_price_are_stuck(rows, numbers):
    close = walk(200)
    close[99 : 99 + rows + 1] = close[99]  # bar 99 moves there, the next ones stay
    assert check(bars(close)).numbers == numbers


def test_bars_without_volume_are_counted_and_their_longest_run_named():
    close = walk(60)
    volume = np.full(60, 5.0)
    for rows in (slice(4, 5), slice(20, 23), slice(40, 42)):
        volume[rows] = 0.0
        close[rows] = close[rows.start - 1]
    (finding,) = check(bars(close, volume=volume)).findings
    assert (finding.number, finding.count) == ("D43", 6)
    assert finding.detail == "at most 3 in a row, from 2021-01-01T20:00:00Z"


@pytest.mark.parametrize(("steps", "numbers"), [(15, ("D35",)), (16, ("D36",))])
def test_sixteen_equal_longer_steps_are_another_interval(steps, numbers):
    hours = np.concatenate((np.arange(100), 99 + 2 * np.arange(1, steps + 1)))
    hours = np.concatenate((hours, hours[-1] + np.arange(1, 100)))
    assert check(bars(walk(len(hours)), START + HOUR_MS * hours)).numbers == numbers


@pytest.mark.parametrize(
    ("now", "numbers"),
    [
        (START + 10 * HOUR_MS, ()),  # the last of ten bars has just closed
        (START + 10 * HOUR_MS - 1, ("D40",)),
        (START + 9 * HOUR_MS, ("D40",)),
        (START + 9 * HOUR_MS - 1, ("D40", "D41")),
    ],
)
def test_a_bar_is_unclosed_until_its_end_and_future_before_its_start(now, numbers):
    assert check(bars(walk(10)), now_ms=now).numbers == numbers


def test_weekly_bars_open_on_mondays():
    week = Interval.parse("1w")
    monday = START + 3 * 86_400_000  # 2021-01-04
    ts = monday + 7 * 86_400_000 * np.arange(20)
    assert check(bars(walk(20), ts), week).findings == ()
    assert check(bars(walk(20), ts - 4 * 86_400_000), week).numbers == ("D29",)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("2021-01-01T05:00:00Z", START + 5 * HOUR_MS),
        ("2021-01-01 07:00:00+02:00", START + 5 * HOUR_MS),
        ("2020-12-31T23:30:00-0530", START + 5 * HOUR_MS),
        ("2021-01-01T04:59:59.999Z", START + 5 * HOUR_MS - 1),
        ("2021-01-01T04:59:60Z", START + 5 * HOUR_MS),
        ("2021-01-01T05:00Z", START + 5 * HOUR_MS),
        ("2021-01-01Z", START),
        (" 1609477200000 ", START + 5 * HOUR_MS),
        ("1609477200", START + 5 * HOUR_MS),
        ("1609477200.25", START + 5 * HOUR_MS + 250),
    ],
)
def test_a_written_time_is_read_as_utc_milliseconds(written, expected):
    from stormsail.market.checks.stamps import read_stamps

    stamps = read_stamps(pa.array([written, "no time"]))
    assert (stamps.ms[0], stamps.valid.tolist()) == (expected, [True, False])


def test_microseconds_from_2025_on_are_named_with_their_first_row():
    ts = START + HOUR_MS * np.arange(100)
    ts[60:] *= 1000
    (finding,) = check(bars(walk(100), ts)).findings
    assert (finding.number, finding.count) == ("D27", 40)
    assert finding.detail == "60 in ms, 40 in us"
    assert str(finding.places[0]) == "row 60 2021-01-03T12:00:00Z us"


@pytest.mark.parametrize(
    ("start", "twelve", "severity"),
    [
        (1_735_689_600_000, True, "warning"),
        (1_735_689_600_000, False, "error"),
        (1_735_689_600_000 - HOUR_MS, True, "error"),
    ],
)
def test_microseconds_from_2025_on_are_documented_in_dumps_of_twelve_columns(
    start, twelve, severity
):
    ts = (start + HOUR_MS * np.arange(100)) * 1000
    close = walk(100)
    more = {
        "close_time": ts + HOUR_MS * 1000 - 1,
        "quote_volume": 5.0 * close,
        "trades": np.full(100, 3),
        "taker_buy_base": np.full(100, 2.0),
        "taker_buy_quote": 2.0 * close,
        "ignore": np.zeros(100),
    }
    report = check(bars(close, ts, **(more if twelve else {})))
    (finding,) = [finding for finding in report.findings if finding.number == "D26"]
    assert (finding.severity, finding.count) == (severity, 100)


def test_summary_and_json_say_the_same():
    import json

    ts = START + HOUR_MS * np.array([0, 1, 3, 4])
    report = check(bars(np.array([1.0, 2.0, 3.0, -4.0]), ts))
    assert report.summary() == (
        "BTC/USDT 1h: refused, 4 rows, 1 errors, 1 warnings\n"
        "  D17 negative-price, error, 2x: row 3 2021-01-01T04:00:00Z low=-4.0; "
        "row 3 2021-01-01T04:00:00Z close=-4.0. Mend the source. --repair drop-invalid-rows\n"
        "  D35 gap, warning, 1x (1 bars missing, at most 1 from 2021-01-01T02:00:00Z): "
        "row 2 2021-01-01T03:00:00Z 1 missing from "
        "2021-01-01T02:00:00Z. Fetch the missing span; if the exchange was down, gaps stay gaps "
        "and are never filled."
    )
    written = json.loads(json.dumps(report.as_dict()))
    assert (written["ok"], written["errors"], written["warnings"]) == (False, 1, 1)
    assert written["findings"][1]["places"] == [
        {"row": 2, "time": "2021-01-01T03:00:00Z", "value": "1 missing from 2021-01-01T02:00:00Z"}
    ]


def test_stored_bars_are_checked_as_they_are():
    report = check_bars(Bars("BTC/USDT", HOUR, bars(walk(30))), now_ms=START)
    assert report.numbers == ("D40", "D41")


def rates(rate: np.ndarray, hours: np.ndarray) -> pa.Table:
    return pa.table({"ts": START + HOUR_MS * hours, "funding_rate": rate})


def test_funding_every_eight_hours_or_more_often_is_good():
    hours = np.concatenate((np.arange(0, 80, 8), np.arange(80, 120, 4)))
    table = rates(np.full(len(hours), 1e-4), hours)
    assert check_funding(Funding("BTC/USDT:USDT", table)).findings == ()


def test_missing_settlements_are_a_gap():
    table = rates(np.full(4, 1e-4), np.array([0, 8, 32, 40]))
    (gap,) = check_funding(Funding("BTC/USDT:USDT", table)).findings
    assert (gap.number, gap.count, gap.detail) == ("D35", 1, "2 settlements of 8 hours missing")
    assert gap.places[0].time == "2021-01-02T08:00:00Z"


def test_rates_in_percent_are_seen():
    table = rates(np.full(30, 0.01), 8 * np.arange(30))
    assert check_funding_table(table, symbol="X").numbers == ("D47",)


def test_raw_rates_out_of_order_doubled_or_empty_are_errors():
    table = rates(np.array([1e-4, np.nan, np.inf, 1e-4]), np.array([0, 8, 4, 4]))
    report = check_funding_table(table, symbol="X")
    assert {f.number: f.places[0].row for f in report.findings} == {
        "D15": 1,
        "D16": 2,
        "D32": 2,
        "D34": 3,
    }
    assert check_funding_table(table.slice(0, 0), symbol="X").numbers == ("D01",)
    assert check_funding_table(table.drop(["funding_rate"]), symbol="X").numbers == ("D07",)
