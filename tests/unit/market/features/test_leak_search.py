"""The search for leaks in few rows: every one is found, no honest twin is flagged."""

import re

import numpy as np
import pytest
import torch

import planted_leaks
from stormsail.core.generators import Generators
from stormsail.market.features import FeatureSet, Registry, feature, sample_bars, search_leaks
from stormsail.market.features.leak_conditions import EVERYWHERE, Rows, condition_of
from stormsail.market.features.leak_rows import ROW_TAMPERS, check_rows, pieces
from stormsail.market.features.leak_search import CLOCKS, LENGTHS, YEARS, histories
from stormsail.market.features.leaks import TAMPERS
from stormsail.market.interval import Interval

HOUR = Interval.parse("1h")
HOUR_MS = 3_600_000
LOOK_AHEAD = {*TAMPERS, *ROW_TAMPERS}

CONDITIONS = {
    "sparse_hour_of_day": "at 03:00 UTC: ",
    "sparse_hour_of_week": "on Mondays at 05:00 UTC: ",
    "sparse_from_a_date": "from 2025-",
    "sparse_above_a_price": r"at closes of 6\.\d+e\+04 or more: ",
    "sparse_long_history": "in histories of 8194 bars or more: ",
    "sparse_first_of_month": "on day 1 of the month: ",
    "sparse_below_a_price": r"at closes of [5-9]\.?\d*e-05 or less: ",
    "sparse_until_a_date": "until 2014-",
    "sparse_missing_on_sundays": "on Sundays: ",
    "sparse_after_a_large_move": r"after log returns of 0\.06\d* or more: ",
    "sparse_far_ahead": "at 00:00 UTC: ",
    "sparse_december_and_volume": "in month 12",
}


def generator(seed=0):
    return Generators(seed).stream("leaks")


def searched(target, *, seed=0, **options):
    return search_leaks(target, interval=HOUR, generator=generator(seed), **options)


def registered(function, *, lookback=1, columns=("close",)):
    return feature(name="mine", lookback=lookback, columns=columns, registry=Registry())(function)


def test_there_are_twelve_of_each():
    assert len(planted_leaks.SPARSE_LEAKS) == len(planted_leaks.SPARSE_TWINS) == 12
    assert [leak.name for leak in planted_leaks.SPARSE_LEAKS] == list(CONDITIONS)


@pytest.mark.spec("R13")
@pytest.mark.parametrize("planted", planted_leaks.SPARSE_LEAKS, ids=lambda planted: planted.name)
def test_a_leak_in_few_rows_is_caught_and_its_condition_named(planted):
    report = searched(planted)
    assert report.leaks[0].kind in LOOK_AHEAD
    assert re.search(CONDITIONS[planted.name], report.conditions[planted.name])
    found, _, total = report.conditions[planted.name].rpartition(": ")[2].partition(" of ")
    assert int(found) >= 0.9 * int(total.partition(" ")[0])


@pytest.mark.spec("R13")
@pytest.mark.parametrize("twin", planted_leaks.SPARSE_TWINS, ids=lambda planted: planted.name)
def test_no_honest_twin_is_flagged(twin):
    report = searched(twin)
    assert report.leaks == ()
    assert report.conditions == {}
    rounded = {"honest_cumulative_mean", "honest_power"}
    assert bool(report.roundings) == (twin.name in rounded)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(1, 6))
def test_the_verdicts_on_leaks_in_few_rows_do_not_depend_on_the_seed(seed):
    for leak in planted_leaks.LEAKS + planted_leaks.SPARSE_LEAKS:
        assert searched(leak, seed=seed).leaks[0].kind in LOOK_AHEAD, leak.name
    for twin in planted_leaks.TWINS + planted_leaks.SPARSE_TWINS:
        assert searched(twin, seed=seed).leaks == (), twin.name


def test_a_set_has_one_verdict_for_each_feature():
    registry = Registry()
    feature(name="good", lookback=1, registry=registry)(lambda x: x["close"].log())
    feature(name="mixed", lookback=1, registry=registry)(
        lambda x: x["close"] - x["close"].mean(1, keepdim=True)
    )
    feature(name="broken", lookback=1, registry=registry)(lambda x: x["no"])
    report = searched(FeatureSet(["good", "mixed", "broken"], interval=HOUR, registry=registry))
    assert report.of("good") == ()
    assert {leak.kind for leak in report.of("mixed")} == {"symbol"}
    assert {leak.kind for leak in report.of("broken")} == {"error"}


# --- every row


def test_every_row_with_a_window_and_a_future_is_cut_once():
    for rows, lookback in ((40, 1), (300, 1), (300, 7), (1000, 300), (10, 9), (10, 10)):
        cut = [row for piece in pieces(rows, lookback) for row in range(piece.first, piece.last)]
        assert cut == list(range(lookback - 1, rows - 1))
        for piece in pieces(rows, lookback):
            assert piece.first - piece.start == lookback - 1
            assert piece.stop == min(piece.last + 128, rows)


@pytest.mark.parametrize("distance", [1, 2, 17, 127, 128, 129, 300])
@pytest.mark.parametrize("row", [5, 131, 132, 133, 300, 690])
def test_one_leaking_row_is_found_at_any_distance(row, distance):
    # lookback 5; the row reads one bar that is `distance` ahead, or the last one
    bars = sample_bars(rows=700, symbols=2, interval=HOUR, generator=generator())
    here = bars.ts[row]

    def once(x):
        ahead = planted_leaks.shifted(x["close"], distance)
        return torch.where((x.ts == here)[:, None], ahead, x["close"])

    result = check_rows(registered(once, lookback=5).bind(), bars, generator=generator())
    seen = (result.ahead | result.apart).any(1).nonzero().flatten().tolist()
    assert seen == [row]
    assert {leak.row for leak in result.leaks} == {row}
    kinds = {leak.kind for leak in result.leaks}
    reaches = distance <= 128 or row + distance >= 700
    assert (kinds >= set(ROW_TAMPERS)) if reaches else bool(kinds)


@pytest.mark.parametrize("row", [5, 132, 300])
def test_what_is_read_from_beyond_a_piece_differs_in_the_whole(row):
    # 300 bars ahead, where there are so many; honest in a piece, which has no more than 260
    bars = sample_bars(rows=700, symbols=2, interval=HOUR, generator=generator())
    here = bars.ts[row]

    def once(x):
        rows = torch.arange(len(x))
        reads = (x.ts == here) & (rows + 300 < len(x))
        return torch.where(reads[:, None], planted_leaks.shifted(x["close"], 300), x["close"])

    result = check_rows(registered(once, lookback=5).bind(), bars, generator=generator())
    assert not bool(result.ahead.any())
    assert result.apart.any(1).nonzero().flatten().tolist() == [row]
    (leak,) = result.leaks
    assert (leak.kind, leak.row, leak.note) == ("window", row, "260 bars, lookback 5")
    assert leak.size == pytest.approx((bars["close"][row + 300] - bars["close"][row]).abs().max())
    report = searched(registered(once, lookback=5), bars=bars)
    assert report.leaks[0].kind in TAMPERS
    assert (report.leaks[0].row, report.leaks[0].history) == (row, "your bars")


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x["close"] > planted_leaks.shifted(x["close"], -1),
        lambda x: x["close"] > x["open"],
        lambda x: x["volume"] == 0.0,
        lambda x: x["high"] > 1.01 * x["open"],
        lambda x: x["high"] > 1.001 * torch.maximum(x["open"], x["close"]),
        lambda x: x["low"] < 0.999 * torch.minimum(x["open"], x["close"]),
        lambda x: x["open"] > planted_leaks.shifted(x["close"], -1),
        lambda x: x["funding"] > 0.0,
    ],
    ids=["direction", "colour", "missing", "wick", "upper wick", "lower wick", "gap", "funding"],
)
def test_a_truth_about_the_next_bar_is_found_in_every_row(read):
    bars = sample_bars(rows=300, symbols=2, interval=HOUR, generator=generator())
    columns = ("open", "high", "low", "close", "volume", "funding")
    leak = registered(
        lambda x: planted_leaks.shifted(read(x), 1).double(), lookback=2, columns=columns
    )
    result = check_rows(leak.bind(), bars, generator=generator(), tampers=("rise", "fall"))
    assert bool(result.ahead[1:299].all())


def test_a_bar_that_was_changed_is_still_a_bar():
    bars = sample_bars(rows=300, symbols=3, interval=HOUR, generator=generator())
    seen = []

    def watching(x):
        seen.append({name: x[name] for name in ("open", "high", "low", "close", "volume")})
        return x["close"]

    columns = ("open", "high", "low", "close", "volume")
    check_rows(
        registered(watching, columns=columns).bind(),
        bars,
        generator=generator(),
        tampers=("rise", "fall"),
    )
    assert len(seen) > 6
    for x in seen:
        assert bool((x["low"] <= torch.minimum(x["open"], x["close"])).all())
        assert bool((x["high"] >= torch.maximum(x["open"], x["close"])).all())
        assert bool((x["low"] > 0.0).all() & (x["volume"] >= 0.0).all())


# --- histories


def calendar(ts):
    """Month, day of the month, weekday and hour of each time."""
    moments = np.asarray(ts).astype("datetime64[ms]")
    month, day = moments.astype("datetime64[M]"), moments.astype("datetime64[D]")
    return np.stack(
        [
            month.astype(int) % 12 + 1,
            (day - month.astype("datetime64[D]")).astype(int) + 1,
            (day.astype(int) + 3) % 7,
            np.asarray(ts) // HOUR_MS % 24,
        ],
        axis=1,
    )


def distinct(values):
    return len(np.unique(values, axis=0))


@pytest.mark.parametrize("lookback", [3, 300])
def test_the_clocks_meet_every_hour_of_a_leap_year_whatever_the_lookback(lookback):
    bound = [registered(lambda x: x["close"], lookback=lookback).bind()]
    clocks = list(histories(bound, HOUR, generator(), None))[1 : 1 + CLOCKS]
    tested = []
    for history in clocks:
        ts = history.rows_for(lookback).ts
        assert ts.diff().unique().tolist() == [HOUR_MS]
        tested.append(ts.numpy()[lookback - 1 : -1])
    times = np.concatenate(tested)
    assert tested[0][[0, -1]].tolist() == [1_167_609_600_000, 1_168_527_600_000]  # 2007, 255 h more
    assert {int(x) for x in times.astype("datetime64[ms]").astype("datetime64[Y]").astype(int)} >= {
        year - 1970 for year in YEARS
    }
    at = calendar(times)
    assert distinct(at[:, [0, 1, 3]]) == 366 * 24  # month, day, hour: the 29th of February, too
    assert distinct(at[:, [2, 3]]) == 168
    assert distinct(at[:, [1, 2]]) == 31 * 7  # Friday the 13th
    assert CLOCKS == 3 * len(YEARS) == 105


def test_the_histories_cover_sizes_and_lengths():
    bound = [registered(lambda x: x["close"], lookback=3).bind()]
    made = list(histories(bound, HOUR, generator(), None))
    assert LENGTHS == (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
    lengths = [3 + length for length in LENGTHS]
    assert [len(history.bars) for history in made] == [265, *[259] * CLOCKS, *lengths]
    clocks = made[1 : 1 + CLOCKS]
    for name, low, high in (("close", 1e-8, 1e9), ("volume", 1e-8, 1e9), ("funding", 1e-6, 1e-1)):
        columns = [history.bars[name].abs() for history in clocks]
        levels = torch.stack([column[column != 0.0].median() for column in columns])
        assert levels.min().item() == pytest.approx(low, rel=0.2)
        assert levels.max().item() == pytest.approx(high, rel=0.2)
        assert levels.log10().sort().values.diff().max() < 0.2
    moves = torch.stack([h.bars["close"].log().diff(dim=0).abs().median() for h in clocks])
    usual = made[0].bars["close"].log().diff(dim=0).abs().median()
    assert (moves / usual).min() < 0.15
    assert (moves / usual).max() > 12.0
    for history in clocks:
        x = history.bars
        assert bool((x["low"] <= torch.minimum(x["open"], x["close"])).all())
        assert bool((x["high"] >= torch.maximum(x["open"], x["close"])).all())
        torch.testing.assert_close(x["quote_volume"], x["volume"] * x["close"])


def test_short_bars_meet_every_hour_of_the_day_on_the_clocks():
    minute = Interval.parse("1m")
    bound = [registered(lambda x: x["close"], lookback=3).bind()]
    made = list(histories(bound, minute, generator(), None))
    hours = torch.cat([history.bars.ts // HOUR_MS % 24 for history in made[1 : 1 + CLOCKS]])
    assert len(hours.unique()) == 24


def test_the_users_bars_come_first_and_lend_their_shape_to_the_clocks():
    own = sample_bars(rows=900, symbols=2, interval=HOUR, generator=generator(5))
    bound = [registered(lambda x: x["close"], lookback=3).bind()]
    made = list(histories(bound, HOUR, generator(), own))
    assert made[0].name == "your bars"
    assert made[0].bars is own
    for index, history in enumerate(made[2 : 2 + CLOCKS]):
        # one symbol, whose log returns are a multiple of its own in some 259 rows
        moves = history.bars["close"].log().diff(dim=0).flatten()
        own_moves = own["close"][:, index % 2].log().diff(dim=0).unfold(0, len(moves), 1)
        size = (moves.abs().amax() / own_moves.abs().amax(1)).unsqueeze(1)
        assert (own_moves * size - moves).abs().amax(1).min() < 1e-9


# --- conditions


def rows(count=2000, **columns):
    ts = 1_609_459_200_000 + HOUR_MS * np.arange(count)
    rng = np.random.default_rng(0)
    made = {
        "leaks": np.zeros(count, dtype=bool),
        "ts": ts,
        "price": np.exp(rng.normal(size=count)),
        "volume": np.exp(rng.normal(size=count)),
        "move": np.abs(rng.normal(size=count)),
        "funding": np.full(count, np.nan),
        "length": np.full(count, count),
    }
    return Rows(**{**made, **columns})


def test_conditions_are_named_by_hand():
    base = rows()
    hour = base.ts // HOUR_MS % 24

    def told(leaks, *more, **columns):
        return condition_of([rows(leaks=leaks, **columns), *more])

    assert told(np.ones(2000, dtype=bool)) == EVERYWHERE
    assert told(hour == 3) == "at 03:00 UTC: 84 of 84 such rows"
    assert told(np.isin(hour, (3, 4))) == "at 03:00 UTC, at 04:00 UTC: 168 of 168 such rows"
    # 2021-01-01 was a Friday: row 0 is Friday 00:00
    assert told(np.arange(2000) % 168 == 5) == "on Fridays at 05:00 UTC: 12 of 12 such rows"
    assert told(np.arange(2000) >= 1200) == "from 2021-02-20T00:00:00Z on: 800 of 800 such rows"
    assert told(np.arange(2000) < 1200) == "until 2021-02-19T23:00:00Z: 1200 of 1200 such rows"
    dear = base.price > 2.0
    edge = base.price[dear].min()
    assert told(dear) == f"at closes of {edge:.4g} or more: {dear.sum()} of {dear.sum()} such rows"
    both = dear & (hour == 3)
    edge = base.price[both].min()
    assert told(both).startswith("at 03:00 UTC and at closes of ")
    empty = np.where(np.arange(2000) % 7 == 0, 0.0, 1.0)
    assert told(empty == 0.0, volume=empty) == "on bars without volume: 286 of 286 such rows"
    edge = np.isin(np.arange(2000), range(700, 704))
    assert told(edge) == (
        "from 2021-01-30T04:00:00Z on and until 2021-01-30T07:00:00Z: 4 of 4 such rows"
    )
    afternoon = (base.ts // 86_400_000 == 18_678) & (hour >= 12)  # 2021-02-20
    assert told(afternoon) == (
        "from 2021-02-20T12:00:00Z on and until 2021-02-20T23:00:00Z: 12 of 12 such rows"
    )
    later = rows(ts=base.ts + 365 * 86_400_000, leaks=base.ts // 86_400_000 == 18_678)
    assert told(base.ts // 86_400_000 == 18_678, later) == "on 02-20: 48 of 48 such rows"
    rates = np.linspace(-0.01, 0.01, 2000)[np.random.default_rng(1).permutation(2000)]
    assert told(rates <= -0.005, funding=rates).startswith("at funding rates of -0.00")
    short = rows(length=np.full(2000, 300))
    long = condition_of([short, rows(leaks=np.ones(2000, dtype=bool))])
    assert long == "in histories of 2000 bars or more: 2000 of 2000 such rows"
    some = np.random.default_rng(3).random(2000) < 0.1
    assert told(some) == f"in {some.sum()} of 2000 rows, without a condition that was found"
