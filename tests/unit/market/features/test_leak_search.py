"""The search for leaks in few rows: every one is found, no honest twin is flagged."""

import numpy as np
import pytest
import torch

import planted_leaks
from stormsail.core.generators import Generators
from stormsail.market.features import FeatureSet, Registry, feature, sample_bars, search_leaks
from stormsail.market.features.leak_conditions import EVERYWHERE, Rows, condition_of
from stormsail.market.features.leak_rows import ROW_TAMPERS, check_rows, pieces
from stormsail.market.features.leak_search import LONG, YEARS, histories
from stormsail.market.features.leaks import TAMPERS
from stormsail.market.interval import Interval

HOUR = Interval.parse("1h")
HOUR_MS = 3_600_000
LOOK_AHEAD = {*TAMPERS, *ROW_TAMPERS}

CONDITIONS = {
    "sparse_hour_of_day": "at 03:00 UTC: ",
    "sparse_hour_of_week": "on Mondays at 05:00 UTC: ",
    "sparse_from_a_date": "from 2025-",
    "sparse_above_a_price": "at closes of 6.0",
    "sparse_long_history": f"in histories of {LONG} bars or more: ",
    "sparse_first_of_month": "on day 1 of the month: ",
    "sparse_below_a_price": "at closes of 9.9",
    "sparse_until_a_date": "until 2014-",
    "sparse_missing_on_sundays": "on Sundays: ",
    "sparse_after_a_large_move": "after log returns of 0.06 or more: ",
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
    assert CONDITIONS[planted.name] in report.conditions[planted.name]
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


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x["close"] > planted_leaks.shifted(x["close"], -1),
        lambda x: x["close"] > x["open"],
        lambda x: x["volume"] == 0.0,
        lambda x: x["high"] > 1.01 * x["open"],
        lambda x: x["open"] > planted_leaks.shifted(x["close"], -1),
        lambda x: x["funding"] > 0.0,
    ],
    ids=["direction", "colour", "missing", "wick", "gap", "funding"],
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


def test_the_histories_cover_years_hours_prices_and_lengths():
    bound = [registered(lambda x: x["close"], lookback=3).bind()]
    made = list(histories(bound, HOUR, generator(), None))
    assert [len(history.bars) for history in made] == [265, *[259] * len(YEARS), LONG]
    clocks = made[1:-1]
    years = {int(history.bars.ts[-1].item() / 31_556_952_000) + 1970 for history in clocks}
    assert years >= set(YEARS)
    for history in clocks:
        assert history.bars.ts.diff().unique().tolist() == [HOUR_MS]
        week = (history.bars.ts // HOUR_MS) % 168
        assert len(week.unique()) == 168
    months = np.concatenate([history.bars.ts.numpy() for history in clocks])
    assert (
        len(np.unique(months.astype("datetime64[ms]").astype("datetime64[M]").astype(int) % 12))
        == 12
    )
    for name, low, high in (("close", 1e-7, 1e8), ("volume", 1e-7, 1e8)):
        levels = torch.cat([h.bars[name].median(0).values for h in clocks])
        assert levels.min() < low
        assert levels.max() > high
        ordered = levels.log10().sort().values
        assert ordered.diff().max() < 1.0


def test_short_bars_meet_every_hour_of_the_day_on_the_clocks():
    minute = Interval.parse("1m")
    bound = [registered(lambda x: x["close"], lookback=3).bind()]
    made = list(histories(bound, minute, generator(), None))
    hours = torch.cat([history.bars.ts // HOUR_MS % 24 for history in made[1:-1]])
    assert len(hours.unique()) == 24


def test_the_users_bars_come_first_and_lend_their_shape_to_the_clocks():
    own = sample_bars(rows=900, symbols=2, interval=HOUR, generator=generator(5))
    bound = [registered(lambda x: x["close"], lookback=3).bind()]
    made = list(histories(bound, HOUR, generator(), own))
    assert made[0].name == "your bars"
    assert made[0].bars is own
    returns = {round(x, 12) for x in (own["close"].log().diff(dim=0)).flatten().tolist()}
    part = made[2].bars["close"].log().diff(dim=0).flatten().tolist()
    assert {round(x, 12) for x in part} <= returns | {round(x + 1e-12, 12) for x in returns} | {
        round(x - 1e-12, 12) for x in returns
    }


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
        "length": np.full(count, count),
    }
    return Rows(**{**made, **columns})


def test_conditions_are_named_by_hand():
    base = rows()
    hour = base.ts // HOUR_MS % 24

    def told(leaks, *more, **columns):
        return condition_of([rows(leaks=leaks, **columns), *more])

    assert told(np.ones(2000, dtype=bool)) == EVERYWHERE
    assert told(hour == 3) == "at 03:00 UTC: 83 of 83 such rows"
    assert told(np.isin(hour, (3, 4))) == "at 03:00 UTC, at 04:00 UTC: 167 of 167 such rows"
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
    short = rows(length=np.full(2000, 300))
    long = condition_of([short, rows(leaks=np.ones(2000, dtype=bool))])
    assert long == "in histories of 2000 bars or more: 2000 of 2000 such rows"
    some = np.random.default_rng(3).random(2000) < 0.1
    assert told(some) == f"in {some.sum()} of 2000 rows, without a condition that was found"
