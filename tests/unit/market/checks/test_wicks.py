"""False wicks by hand: what is usual around a bar, what explains a wick, and who hinges on it."""

import numpy as np
import pyarrow as pa
import pytest

from stormsail.bench.market.wicks import Row, rows, verdicts
from stormsail.market.bars import Bars
from stormsail.market.checks import check_bars
from stormsail.market.checks.wicks import Reference, suspicious_rows
from stormsail.market.interval import Interval
from stormsail.market.store import Store

HOUR = Interval.parse("1h")
START = 1_609_459_200_000
AT = 100


def quiet(count: int = 200) -> dict[str, np.ndarray]:
    """Bars that open and close at 100 and range from 99 to 101: log(101 / 99) = 0.0200007."""
    full = np.full
    return {
        "ts": START + HOUR.milliseconds * np.arange(count),
        **{"open": full(count, 100.0), "high": full(count, 101.0)},
        **{"low": full(count, 99.0), "close": full(count, 100.0)},
        "volume": full(count, 5.0),
    }


def bars(columns: dict[str, np.ndarray]) -> Bars:
    return Bars("BTC/USDT", HOUR, pa.table(columns))


def flagged(columns: dict[str, np.ndarray], reference: Reference | None = None) -> list[int]:
    return suspicious_rows(bars(columns), reference).tolist()


def planted(high: float = 150.0, at: int = AT, **changes: tuple[int, float]):
    columns = quiet()
    columns["high"][at] = high
    for name, (row, value) in changes.items():
        columns[name][row] = value
    return columns


def test_quiet_bars_have_no_false_wick():
    assert flagged(quiet()) == []


@pytest.mark.parametrize(("high", "found"), [(109.9, []), (110.1, [AT]), (150.0, [AT])])
def test_a_wick_must_be_longer_than_a_tenth(high, found):
    """4 usual ranges are 0.08, so log 1.1 = 0.0953 decides."""
    assert flagged(planted(high)) == found


@pytest.mark.parametrize("at", [0, 3, 199])
def test_a_wick_at_either_end_is_found(at):
    assert flagged(planted(at=at)) == [at]


@pytest.mark.parametrize(("volume", "found"), [(125.0, [AT]), (130.0, [])])
def test_volume_explains_a_wick_by_its_root(volume, found):
    """log 1.5 = 0.405465 = 4 * 0.0200007 * 5.0682, and 5.0682 squared is 25.69: 128 of 5."""
    assert flagged(planted(volume=(AT, volume))) == found


def test_without_volume_only_ranges_and_bodies_speak():
    columns = planted(volume=(AT, 130.0))
    columns["volume"][:] = 0.0  # nothing was usual: nothing can be told from it
    assert flagged(columns) == [AT]


@pytest.mark.parametrize(
    ("row", "body", "found"),
    [(AT + 2, 0.20, [AT]), (AT + 2, 0.21, []), (AT + 3, 0.21, [AT]), (AT - 2, 0.21, [])],
)
def test_a_body_within_two_bars_explains_a_wick(row, body, found):
    """Half a body b must be below log 1.5 / 4, so b below 0.2027."""
    columns = planted()
    columns["open"][row] *= np.exp(-body)
    columns["low"][row] *= np.exp(-body)
    assert flagged(columns) == found


@pytest.mark.parametrize(("count", "found"), [(24, []), (23, [AT])])
def test_the_median_of_48_neighbours_is_usual(count, found):
    """Ranges of 0.11 in 24 of 48 bars: the median is (0.02 + 0.11) / 2 and 4 of it 0.26; the mean
    is the same. So a wick of log 1.25 = 0.2231 is explained; with 23 of them the median is 0.02 and
    half the mean (23 * 0.11 + 25 * 0.02) / 96 = 0.0316, and 4 of it 0.126: it is not."""
    columns = planted(high=125.0)
    wide = np.setdiff1d(np.arange(AT - 24, AT + 25), [AT])[:count]
    columns["high"][wide] = 99.0 * np.exp(0.11)
    assert flagged(columns) == found


def test_a_wick_is_not_measured_by_itself():
    """Of six other bars three range over 0.11 and three over 0.02: usual is 0.065, and log 1.35 =
    0.30 more than 4 of it, 0.26. With the bar itself the median would be 0.11, and 4 of it 0.44."""
    columns = quiet(7)
    columns["high"][[0, 1, 5]] = 99.0 * np.exp(0.11)
    columns["high"][3] = 135.0
    assert flagged(columns) == [3]


def test_lows_are_judged_as_highs_are():
    columns = quiet()
    columns["low"][AT] = 100.0 / 1.5
    assert flagged(columns) == [AT]
    columns["volume"][AT] = 130.0
    assert flagged(columns) == []


def test_several_false_wicks_side_by_side_do_not_hide_one_another():
    columns = planted()
    columns["high"][[AT + 1, AT + 3]] = 160.0
    columns["low"][AT + 2] = 50.0
    assert flagged(columns) == [AT, AT + 1, AT + 2, AT + 3]


def reference(high: float, low: float = 99.0) -> Reference:
    columns = quiet()
    columns["high"][AT], columns["low"][AT] = high, low
    return Reference(columns["ts"], columns["high"], columns["low"])


@pytest.mark.parametrize(("elsewhere", "found"), [(136.0, [AT]), (137.0, [])])
def test_a_reference_decides_where_it_has_the_bar(elsewhere, found):
    """150 / 1.1 = 136.36: up to there the other venue does not bear the high out."""
    assert flagged(planted(), reference(elsewhere)) == found


def test_a_reference_sees_what_volume_would_explain_and_lows_and_is_silent_elsewhere():
    traded = planted(volume=(AT, 500.0))
    assert flagged(traded) == []
    assert flagged(traded, reference(101.0)) == [AT]
    columns = quiet()
    columns["low"][AT] = 80.0
    assert flagged(columns, reference(101.0, low=87.0)) == []
    assert flagged(columns, reference(101.0, low=89.0)) == [AT]
    other = Reference(quiet()["ts"][:50], quiet()["high"][:50], quiet()["low"][:50])
    assert flagged(traded, other) == []
    assert flagged(planted(), other) == [AT]


def finding(columns: dict[str, np.ndarray]):
    (found,) = [each for each in check_bars(bars(columns)).findings if each.number == "D48"]
    return found


def test_a_finding_counts_the_liquidations_that_hinge_on_it():
    """Shorts from 100 are gone at 150, 133.3, 120, 110 and 105 with 2, 3, 5, 10, 20 times leverage.
    A high of 125 reaches the last three of all 100 bars before: 300. A high of 106 at row 20 ends
    20-times shorts of rows 0 to 19 beforehand; a body up to 106 takes the other 80 anyway."""
    columns = planted(high=125.0)
    found = finding(columns)
    assert (found.number, found.severity, found.count) == ("D48", "warning", 1)
    assert found.detail == "300 liquidations of shorts hinge on highs"
    assert str(found.places[0]) == (
        "row 100 2021-01-05T04:00:00Z high 1.25 times off open and close; 300 shorts"
    )
    columns["high"][20] = 106.0
    assert finding(columns).detail == "280 liquidations of shorts hinge on highs"
    columns["close"][AT] = 106.0
    assert finding(columns).detail == "200 liquidations of shorts hinge on highs"


def test_longs_hinge_on_lows():
    """Longs from 100 are gone at 50, 66.7, 80, 90 and 95: a low of 66 reaches four of them."""
    columns = quiet()
    columns["low"][AT] = 66.0
    assert finding(columns).detail == "400 liquidations of longs hinge on lows"
    columns["low"][AT] = 67.0
    assert finding(columns).detail == "300 liquidations of longs hinge on lows"


def test_only_the_week_before_is_tried():
    """At row 190 of hourly bars 168 closes are tried, at five leverages: 150 reaches all."""
    columns = quiet()
    columns["high"][190] = 150.0
    assert finding(columns).detail == "840 liquidations of shorts hinge on highs"


def test_a_slipped_decimal_point_stays_a_spike():
    columns = planted(high=1000.0)
    assert [found.number for found in check_bars(bars(columns)).findings] == ["D44"]
    assert flagged(columns) == [AT]


def test_the_bench_counts_what_it_plants(tmp_path):
    """In quiet bars every planted wick is found, and the bars as they are have one flag."""
    store = Store(tmp_path)
    columns = {name: np.tile(column, 20) for name, column in quiet().items()}
    columns["ts"] = START + HOUR.milliseconds * np.arange(4_000)
    columns["high"][2_000] = 150.0
    store.write(bars(columns))
    measured = list(rows(store, factors=(1.5, 12.0), planted=40, first_seed=3))
    assert [(row.bars, row.flags, row.planted, row.found) for row in measured] == [
        (4_000, 1, 40, 40),
        (4_000, 1, 40, 40),
    ]
    assert [verdict.passed for verdict in verdicts(measured)] == [True, True, False]


def test_verdicts_are_by_hand():
    """99 of 100 are enough, 98 are not; one flag in 20,000 bars is enough."""
    good = Row("A/B", "1h", 20_000, 1, 100, 99, 1.5)
    bad = Row("A/B", "1h", 19_999, 1, 100, 98, 1.5)
    assert [verdict.passed for verdict in verdicts([good])] == [True, True]
    assert [verdict.passed for verdict in verdicts([bad])] == [False, False]
