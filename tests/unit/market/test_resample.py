"""Longer bars: against a plain loop, and without a look at what comes later."""

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from stormsail.core.errors import DataError
from stormsail.market.bars import Bars, from_columns
from stormsail.market.interval import Interval
from stormsail.market.resample import resample

MINUTE = 60_000
DAY = 86_400_000
START = 1_609_459_200_000  # 2021-01-01T00:00Z, a Friday
SUMMED = ("volume", "quote_volume", "trades", "taker_buy_base", "taker_buy_quote")


def interval(text: str) -> Interval:
    return Interval.parse(text)


def made(ts, seed: int = 0, length: str = "15m") -> Bars:
    chance = np.random.Generator(np.random.PCG64(seed))
    ts = np.asarray(ts, dtype=np.int64)
    price = chance.uniform(1.0, 2.0, (4, len(ts)))
    columns = {"ts": ts, "open": price[0], "close": price[1]}
    columns |= {"high": price.max(0) + 0.1, "low": price.min(0) - 0.1}
    columns |= {name: chance.integers(0, 1000, len(ts)) * 0.5 for name in SUMMED}
    columns["trades"] = chance.integers(0, 1000, len(ts))
    return from_columns("BTC/USDT", interval(length), columns)


def by_loop(bars: Bars, long: Interval, *, keep_partial: bool) -> dict[int, dict[str, float]]:
    """The same in plain Python: a dictionary of groups."""
    groups: dict[int, list[dict[str, float]]] = {}
    for row in bars.table.to_pylist():
        label = (row["ts"] - long.origin_ms) // long.milliseconds * long.milliseconds
        groups.setdefault(label + long.origin_ms, []).append(row)
    whole = long.milliseconds // bars.interval.milliseconds
    return {
        label: {
            "ts": label,
            "open": rows[0]["open"],
            "high": max(row["high"] for row in rows),
            "low": min(row["low"] for row in rows),
            "close": rows[-1]["close"],
            **{name: sum(row[name] for row in rows) for name in SUMMED},
        }
        for label, rows in groups.items()
        if keep_partial or len(rows) == whole
    }


present = st.lists(st.integers(0, 120), unique=True, max_size=80).map(sorted)


@given(present, st.sampled_from(["15m", "30m", "45m", "1h", "4h", "1d", "1w"]), st.booleans())
def test_longer_bars_are_those_of_a_plain_loop(rows, text, keep_partial):
    bars = made([START + row * 15 * MINUTE for row in rows], seed=len(rows))
    long = interval(text)
    result = resample(bars, long, keep_partial=keep_partial)
    expected = by_loop(bars, long, keep_partial=keep_partial)
    assert result.interval == long
    # Sums are exact here: all volumes are multiples of one half.
    groups = {row["ts"]: row for row in result.table.to_pylist()}
    assert {ts: dict(sorted(row.items())) for ts, row in groups.items()} == {
        ts: dict(sorted(row.items())) for ts, row in expected.items()
    }


@given(present, st.integers(0, 30), st.sampled_from(["30m", "1h", "4h"]))
def test_nothing_after_the_end_of_a_group_changes_it(rows, group, text):
    long = interval(text)
    end = START + group * long.milliseconds
    bars = made([START + row * 15 * MINUTE for row in rows])
    before = bars.between(0, end)
    tampered = bars.table.to_pydict()
    for name in tampered.keys() - {"ts"}:
        tampered[name] = [
            value if ts < end else value * 1000 + 7
            for ts, value in zip(tampered["ts"], tampered[name], strict=True)
        ]
    known = resample(bars, long).between(0, end)
    types = dict(zip(bars.table.schema.names, bars.table.schema.types, strict=True))
    other = pa.table({name: pa.array(values, types[name]) for name, values in tampered.items()})
    assert resample(Bars("BTC/USDT", bars.interval, other), long).between(0, end).digest() == (
        known.digest()
    )
    assert resample(before, long).digest() == known.digest()


def test_four_quarters_of_an_hour_worked_out_by_hand():
    columns = {"ts": [START + i * 15 * MINUTE for i in range(4)]}
    columns |= {"open": [10.0, 12.0, 9.0, 11.0], "high": [13.0, 14.0, 12.0, 12.0]}
    columns |= {"low": [9.0, 11.0, 8.0, 10.0], "close": [12.0, 9.0, 11.0, 10.5]}
    columns |= {"volume": [1.0, 2.0, 3.0, 4.0], "trades": [5, 6, 7, 8]}
    hour = resample(from_columns("BTC/USDT", interval("15m"), columns), interval("1h"))
    assert hour.table.to_pylist() == [
        {"ts": START, "open": 10.0, "high": 14.0, "low": 8.0, "close": 10.5, "volume": 10.0}
        | {"trades": 26}
    ]
    assert hour.notes == {"resampled": "from 15m to 1h; 0 incomplete left out"}


def test_groups_cut_at_either_end_or_with_a_hole_are_left_out_and_counted():
    rows = [1, 2, 3, *range(4, 8), 8, 9, 11, *range(12, 16), 16]
    bars = made([START + row * 15 * MINUTE for row in rows])
    hours = resample(bars, interval("1h"))
    assert ((hours.ts - START) // (60 * MINUTE)).tolist() == [1, 3]
    assert hours.notes["resampled"] == "from 15m to 1h; 3 incomplete left out"
    kept = resample(bars, interval("1h"), keep_partial=True)
    assert ((kept.ts - START) // (60 * MINUTE)).tolist() == [0, 1, 2, 3, 4]
    assert kept.notes["resampled"] == "from 15m to 1h; 3 incomplete kept"


def test_weeks_run_from_monday_to_sunday():
    bars = made([START + day * DAY for day in range(20)], length="1d")
    weeks = resample(bars, interval("1w"))
    # 2021-01-01 is a Friday: the first whole week opens on Monday, the 4th.
    assert ((weeks.ts - START) // DAY).tolist() == [3, 10]
    assert weeks.column("open").tolist() == bars.column("open")[[3, 10]].tolist()
    assert weeks.column("close").tolist() == bars.column("close")[[9, 16]].tolist()


def test_times_before_1970_are_grouped_downwards():
    bars = made([-2 * 15 * MINUTE, -15 * MINUTE, 0, 15 * MINUTE])
    assert resample(bars, interval("30m")).ts.tolist() == [-30 * MINUTE, 0]


def test_the_same_interval_changes_nothing():
    bars = made([START + i * 15 * MINUTE for i in (0, 1, 3)])
    same = resample(bars, interval("15m"))
    assert same.digest() == bars.digest()
    assert same.notes == {}


def test_no_bars_stay_no_bars():
    assert len(resample(made([]), interval("1h"))) == 0


def test_a_missing_number_makes_its_own_group_unknown_only():
    columns = made([START + i * 15 * MINUTE for i in range(4)]).table.to_pydict()
    columns["open"][1], columns["volume"][1] = float("nan"), float("nan")
    columns["trades"][1] = None
    bars = from_columns("BTC/USDT", interval("15m"), columns)
    halves = resample(bars, interval("30m")).table.to_pydict()
    assert np.isnan(halves["volume"]).tolist() == [True, False]
    assert halves["trades"] == [None, columns["trades"][2] + columns["trades"][3]]
    assert halves["open"] == [columns["open"][0], columns["open"][2]]


@pytest.mark.refusal
@pytest.mark.parametrize("text", ["5m", "20m", "50m"])
def test_only_a_multiple_can_be_made(text):
    with pytest.raises(DataError) as caught:
        resample(made([START]), interval(text))
    assert str(caught.value) == (
        "bars can be joined only to a multiple of their own interval; found 15m bars of BTC/USDT "
        f"and `{text}`. Choose a multiple, or import shorter bars. [data-interval]"
    )


@pytest.mark.refusal
def test_bars_off_their_own_grid_are_refused():
    with pytest.raises(DataError) as caught:
        resample(made([START, START + 15 * MINUTE + 1]), interval("1h"))
    assert str(caught.value) == (
        "bars of 15m must open at multiples of 15m in UTC; found BTC/USDT row 1 at "
        "2021-01-01T00:15:00.001Z, 1 such rows. Run `stormsail check` on the source; it lists "
        "every such row. [data-alignment]"
    )
