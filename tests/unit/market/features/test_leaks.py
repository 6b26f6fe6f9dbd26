"""The leak checker: it catches every planted leak and no clean twin."""

import math

import pytest
import torch

import planted_leaks
from stormsail.core.errors import RangeError
from stormsail.core.generators import Generators
from stormsail.functional.market import rolling
from stormsail.market.features import (
    BarTensors,
    FeatureSet,
    Registry,
    check_leaks,
    default_features,
    draw_cuts,
    feature,
    sample_bars,
)
from stormsail.market.features.leaks import TAMPERS, difference
from stormsail.market.interval import Interval

HOUR = Interval.parse("1h")
"""Twins that know nothing of the future, but mix symbols."""


def stage(seed=0, *, rows=600, least=120, cuts=20, interval=HOUR):
    generator = Generators(seed).stream("leaks")
    bars = sample_bars(rows=rows, symbols=3, interval=interval, generator=generator)
    where = draw_cuts(bars, count=cuts, least=least, generator=generator)
    return bars, where, generator


def checked(target, **options):
    bars, cuts, generator = stage(**options)
    return check_leaks(target, bars, cuts=cuts, generator=generator)


def test_there_are_twenty_of_each():
    assert len(planted_leaks.LEAKS) == len(planted_leaks.TWINS) == 20


@pytest.mark.spec("R13")
@pytest.mark.parametrize("planted", planted_leaks.LEAKS, ids=lambda planted: planted.name)
def test_every_planted_leak_is_caught_by_changing_the_future(planted):
    report = checked(planted)
    assert {leak.kind for leak in report.leaks} & set(TAMPERS)
    assert all(leak.feature == planted.name for leak in report.leaks)


@pytest.mark.spec("R13")
@pytest.mark.parametrize("twin", planted_leaks.TWINS, ids=lambda planted: planted.name)
def test_no_clean_twin_is_flagged(twin):
    report = checked(twin)
    assert {leak.kind for leak in report.leaks} == set()
    assert report.comparisons >= 20 * (len(TAMPERS) + 1)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(25))
def test_the_verdicts_do_not_depend_on_the_seed(seed):
    for leak, twin in zip(planted_leaks.LEAKS, planted_leaks.TWINS, strict=True):
        assert not checked(leak, seed=seed).passed, leak.name
        assert checked(twin, seed=seed).passed, twin.name


@pytest.mark.spec("R12")
@pytest.mark.parametrize("interval", ["1m", "1h", "3h", "4h", "1d"])
def test_the_default_features_know_nothing_of_the_future(interval):
    length = Interval.parse(interval)
    chosen = default_features(length)
    rows = chosen.lookback + 400
    report = checked(chosen, rows=rows, least=chosen.lookback - 200, cuts=20, interval=length)
    assert report.leaks == report.roundings == ()
    assert report.features == chosen.names
    assert report.comparisons > 20 * len(chosen.names) * len(TAMPERS)


@pytest.mark.campaign
@pytest.mark.spec("R12")
@pytest.mark.parametrize("interval", ["1m", "5m", "15m", "1h", "4h", "1d"])
def test_the_default_features_know_nothing_of_the_future_at_two_hundred_cuts(interval):
    length = Interval.parse(interval)
    chosen = default_features(length)
    rows = 3 * chosen.lookback
    report = checked(chosen, rows=rows, least=0, cuts=200, interval=length)
    assert report.leaks == report.roundings == ()


def registered(function, *, lookback=1, columns=("close",)):
    return feature(name="mine", lookback=lookback, columns=columns, registry=Registry())(function)


def test_a_leak_is_described_by_row_and_size():
    bars, _, generator = stage()
    leak = registered(lambda x: torch.cat([x["close"][1:], x["close"][-1:]]))

    report = check_leaks(leak, bars, cuts=[300], generator=generator)

    large = next(leak for leak in report.leaks if leak.kind == "x1000")
    assert (large.feature, large.cut, large.row) == ("mine", 300, 300)
    assert large.size == pytest.approx(999 * bars["close"][301].max().item())
    assert str(large).startswith("mine: x1000 after row 300 changes row 300 by ")


def test_the_first_row_that_differs_is_named():
    bars, _, generator = stage()

    def five_ahead(x):
        return torch.cat([x["close"][5:], x["close"][-1:].expand(5, -1)])

    report = check_leaks(registered(five_ahead), bars, cuts=[300], generator=generator)
    assert {leak.row for leak in report.leaks if leak.kind == "noise"} == {296}


def test_a_longer_memory_than_declared_is_found():
    def average(x):
        return rolling.window_mean(x["close"], window=20)[1:]

    report = checked(registered(average, lookback=21))
    assert report.leaks == ()
    full = registered(
        lambda x: (
            torch.cat([x["close"][:19], rolling.window_mean(x["close"], window=20)])
            if len(x) >= 19
            else x["close"]
        ),
        lookback=19,
    )
    kinds = {leak.kind for leak in checked(full).leaks}
    assert kinds == {"window"}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x["close"].cumsum(0),
        lambda x: torch.arange(len(x)).double().unsqueeze(-1).expand_as(x["close"]),
        lambda x: x["close"] / x["close"][0],
    ],
    ids=["cumulative", "row number", "over first price"],
)
def test_what_remembers_the_beginning_is_found(function):
    report = checked(registered(function, lookback=50))
    assert {leak.kind for leak in report.leaks} == {"window"}
    assert "lookback 50" in report.leaks[0].note


def moving(x):
    # a cumulative sum's differences are right to fifteen digits and depend on the beginning
    total = x["close"].cumsum(0)
    return (total[10:] - total[: max(len(x) - 10, 0)]) / 10


def test_a_difference_in_the_last_bit_is_found_and_told_apart_as_rounding():
    report = checked(registered(moving, lookback=11))
    assert report.passed
    assert {rounding.kind for rounding in report.roundings} == {"window"}
    assert 0.0 < max(rounding.size for rounding in report.roundings) < 1e-9


@pytest.mark.parametrize("offset", [0.0, 1e6, 1e9])
def test_a_leak_is_no_rounding_because_it_stands_on_a_large_number(offset):
    # the column's range is 0.1 at most: beside 1e9 that is a part in ten billion
    leak = registered(lambda x: offset + (planted_leaks.shifted(x["close"], 1) / x["close"]).log())
    report = checked(leak)
    assert {"noise", "x1000"} <= {found.kind for found in report.leaks}


def test_what_rounding_is_by_hand():
    def compared(got, expected, spread):
        columns = [
            (torch.tensor([[x]], dtype=torch.float64), torch.ones(1, 1, dtype=torch.bool))
            for x in (got, expected)
        ]
        masks = difference(*columns, torch.tensor([spread], dtype=torch.float64))
        return tuple(bool(mask) for mask in masks)

    assert compared(1.0, 1.0, 5.0) == (False, False)
    assert compared(1.0 + 0.9e-9, 1.0, 5.0) == (True, False)
    assert compared(1.0 + 1.1e-9, 1.0, 5.0) == (True, True)
    assert compared(1.0 + 0.9e-9, 1.0, 0.5) == (True, True)  # more than 1e-9 of the range
    assert compared(1e-12, 2e-12, 5.0) == (True, True)  # small, but twice as large
    assert compared(0.0, -0.0, 5.0) == (True, False)
    assert compared(1.0, 2.0, 0.0) == (True, True)


def test_what_remembers_earlier_calls_is_found():
    calls = []

    def counting(x):
        calls.append(1)
        return x["close"] + len(calls)

    assert "repeat" in {leak.kind for leak in checked(registered(counting)).leaks}


def test_what_writes_into_its_input_is_found_and_the_bars_are_restored():
    bars, cuts, generator = stage()
    before = bars["close"].clone()

    def writing(x):
        return x["close"].mul_(2.0)

    report = check_leaks(registered(writing), bars, cuts=cuts[:2], generator=generator)
    assert [(leak.kind, leak.note) for leak in report.leaks] == [
        ("mutation", "it wrote into `close`")
    ]
    assert torch.equal(bars["close"], before)


def test_what_fails_on_a_changed_future_is_found():
    def fragile(x):
        if bool(x["close"].isnan().any()):
            raise ValueError("no NaN please")
        return x["close"]

    leaks = checked(registered(fragile)).leaks
    assert {leak.kind for leak in leaks} == {"error"}
    assert math.isnan(leaks[0].size)
    assert leaks[0].note == "nan: ValueError: no NaN please"


def test_a_change_of_validity_alone_is_found():
    def late(x):
        known = x["close"].isfinite().all(0)
        return torch.where(known, x["close"].new_zeros(()), torch.nan).expand_as(x["close"])

    leaks = checked(registered(late)).leaks
    assert {leak.kind for leak in leaks} == {"nan"}
    assert leaks[0].size == math.inf


def test_what_writes_into_the_times_is_found_and_they_are_restored():
    bars, cuts, generator = stage()
    before = bars.ts.clone()

    def writing(x):
        x.ts.add_(1)
        return x["close"]

    report = check_leaks(registered(writing), bars, cuts=cuts[:2], generator=generator)
    assert [(leak.kind, leak.note) for leak in report.leaks] == [("mutation", "it wrote into `ts`")]
    assert torch.equal(bars.ts, before)


def test_what_mixes_symbols_is_found():
    leaks = checked(registered(lambda x: x["close"] - x["close"].mean(1, keepdim=True))).leaks
    assert [(leak.kind, leak.note) for leak in leaks] == [
        ("symbol", f"symbol {index} alone") for index in range(3)
    ]


def test_a_feature_does_not_see_which_rows_are_listed():
    bars, _, generator = stage()
    listed = torch.arange(len(bars)).unsqueeze(-1).expand(-1, 3) >= 100
    bars = BarTensors(bars.ts, HOUR, bars.columns, listed)
    seen = []

    def looking(x):
        seen.append(x.listed)
        return x["close"]

    assert check_leaks(registered(looking), bars, cuts=[300], generator=generator).passed
    assert set(seen) == {None}


@pytest.mark.parametrize("error", [TypeError, KeyError, ZeroDivisionError, AttributeError])
def test_a_feature_that_fails_is_a_finding_and_the_others_get_their_verdict(error):
    def broken(x):
        raise error("oh")

    registry = Registry()
    feature(name="broken", lookback=1, registry=registry)(broken)
    feature(name="absent", lookback=1, columns=("nothing",), registry=registry)(broken)
    feature(name="good", lookback=1, registry=registry)(lambda x: x["close"].log())
    report = checked(FeatureSet(["broken", "absent", "good"], interval=HOUR, registry=registry))
    (leak,) = report.of("broken")
    assert leak.kind == "error"
    assert str(leak).startswith(f"broken: error: whole history: {error.__name__}: ")
    assert [absent.kind for absent in report.of("absent")] == ["error"]
    assert report.of("good") == ()
    assert report.comparisons > 20 * len(TAMPERS)


def test_a_set_is_checked_feature_by_feature():
    registry = Registry()
    feature(name="good", lookback=1, registry=registry)(lambda x: x["close"].log())
    feature(name="bad", lookback=1, registry=registry)(lambda x: x["close"] - x["close"].mean(0))
    report = checked(FeatureSet(["good", "bad"], interval=HOUR, registry=registry))
    assert report.of("good") == ()
    assert len(report.of("bad")) == len(report.leaks) > 0


def test_half_of_the_cuts_lie_in_gaps():
    bars, cuts, _ = stage()
    quiet = (bars["volume"] == 0).any(1)
    assert all(bool(quiet[cut]) for cut in cuts[1::2])
    assert min(cuts) >= 120
    assert max(cuts) < len(bars) - 1


@pytest.mark.refusal
def test_a_cut_must_leave_a_future():
    bars, _, generator = stage()
    with pytest.raises(RangeError) as caught:
        check_leaks(planted_leaks.TWINS[0], bars, cuts=[599], generator=generator)
    assert str(caught.value) == (
        "a cut must leave bars after it: at least 0 and below 599; found 599. "
        "Use `draw_cuts`, or pass a longer history. [out-of-range]"
    )
    with pytest.raises(RangeError, match="the history must hold more than 600 bars; found 600"):
        draw_cuts(bars, count=3, least=599, generator=generator)
