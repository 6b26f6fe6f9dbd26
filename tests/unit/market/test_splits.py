"""Splits worked out by hand, and refusals."""

import numpy as np
import pytest

from stormsail.core.errors import DataError, RangeError
from stormsail.market.interval import Interval
from stormsail.market.splits import Span, Split, split_by_time, walk_forward

HOUR = Interval.parse("1h")
H = HOUR.milliseconds
START = 1_609_718_400_000  # 2021-01-04T00:00:00Z


def hours(count, missing=()):
    return START + H * np.array([row for row in range(count) if row not in missing])


def span(first, end):
    return Span(START + first * H, START + end * H)


def test_fractions_cut_rows_and_take_the_gap_from_the_earlier_span():
    split = split_by_time(
        hours(100), HOUR, fractions=(0.6, 0.2, 0.2), lookback_bars=5, burn_in_bars=3
    )
    # gap 5 + 3 + 1 = 9 bars: 60 − 9 = 51, 80 − 9 = 71
    assert split == Split(train=span(0, 51), validation=span(60, 71), test=span(80, 100))


def test_the_smallest_embargo_is_lookback_plus_burn_in():
    split = split_by_time(
        hours(100),
        HOUR,
        fractions=(0.6, 0.2, 0.2),
        lookback_bars=5,
        burn_in_bars=3,
        embargo_bars=8,
    )
    assert split.train == span(0, 52)


def test_dates_begin_validation_and_test():
    split = split_by_time(
        hours(100), HOUR, dates=(START + 50 * H, START + 70 * H), lookback_bars=0, burn_in_bars=0
    )
    assert split == Split(train=span(0, 49), validation=span(50, 69), test=span(70, 100))


def test_the_default_fractions_are_seventy_fifteen_fifteen():
    split = split_by_time(hours(1000), HOUR, lookback_bars=0, burn_in_bars=0)
    assert split == Split(train=span(0, 699), validation=span(700, 849), test=span(850, 1000))


def test_missing_bars_widen_the_gap_in_time():
    times = hours(120, missing=range(40, 60))
    split = split_by_time(
        times, HOUR, dates=(START + 62 * H, START + 90 * H), lookback_bars=4, burn_in_bars=0
    )
    # Five rows before 62 h are those of 61, 60, 39, 38, 37 h; training ends with the bar of 36 h.
    assert split.train == span(0, 37)


def test_a_walk_forward_by_hand():
    folds = list(
        walk_forward(hours(50), HOUR, train_bars=20, test_bars=10, lookback_bars=2, burn_in_bars=1)
    )
    assert [(fold.number, fold.train, fold.test) for fold in folds] == [
        (0, span(0, 20), span(24, 34)),
        (1, span(10, 30), span(34, 44)),
    ]


def test_an_anchored_walk_forward_keeps_its_first_row():
    folds = walk_forward(
        hours(70),
        HOUR,
        train_bars=20,
        test_bars=10,
        step_bars=15,
        lookback_bars=2,
        burn_in_bars=1,
        anchored=True,
    )
    assert [(fold.train, fold.test) for fold in folds] == [
        (span(0, 20), span(24, 34)),
        (span(0, 35), span(39, 49)),
        (span(0, 50), span(54, 64)),
    ]


def test_a_span_counts_and_cuts_its_bars():
    times = hours(10, missing=(4,))
    part = span(3, 7)
    assert times[part.rows(times)].tolist() == [START + row * H for row in (3, 5, 6)]
    assert part.count(times) == 3
    assert part.contains(START + 3 * H)
    assert not part.contains(START + 7 * H)
    assert part.overlaps(span(6, 8))
    assert not part.overlaps(span(7, 8))
    assert part.with_history(times, bars=2) == span(1, 7)
    assert span(5, 7).with_history(times, bars=2) == span(2, 7)
    assert part.with_history(times, bars=99) == span(0, 7)
    assert str(part) == "2021-01-04T03:00:00Z to 2021-01-04T07:00:00Z"


@pytest.mark.refusal
def test_an_embargo_that_leaks_is_refused():
    with pytest.raises(RangeError) as refused:
        split_by_time(hours(100), HOUR, lookback_bars=5, burn_in_bars=3, embargo_bars=7)
    assert str(refused.value) == (
        "`embargo_bars` must be at least 8, the 5 bars that features look back plus the 3 of"
        " burn-in, and one for the last fill; found 7. Leave it out, or raise it. [out-of-range]"
    )
    with pytest.raises(RangeError, match="must be at least 1"):
        walk_forward(
            hours(100),
            HOUR,
            train_bars=5,
            test_bars=5,
            lookback_bars=0,
            burn_in_bars=0,
            embargo_bars=0,
        )


@pytest.mark.refusal
def test_a_span_that_the_gap_swallows_is_refused():
    with pytest.raises(DataError) as refused:
        split_by_time(hours(100), HOUR, lookback_bars=20, burn_in_bars=3)
    assert str(refused.value) == (
        "the validation span must hold at least 2 bars after the embargo; found 0 of 100 bars from"
        " 2021-01-04T00:00:00Z to 2021-01-08T03:00:00Z. Bring more data, a larger share, or a"
        " shorter lookback or burn-in. [data-span]"
    )


@pytest.mark.refusal
def test_a_walk_that_does_not_fit_is_refused_at_the_call():
    with pytest.raises(DataError) as refused:
        walk_forward(hours(30), HOUR, train_bars=20, test_bars=10, lookback_bars=2, burn_in_bars=1)
    assert str(refused.value) == (
        "a fold needs 34 bars: 20 to train, 4 between, 10 to test; found 30 bars from"
        " 2021-01-04T00:00:00Z to 2021-01-05T05:00:00Z. Shorten `train_bars` or `test_bars`, or"
        " bring more data. [data-span]"
    )


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"fractions": (0.5, 0.5, 0.5)}, "three positive shares that add up to 1"),
        ({"fractions": (1.0, 0.0, 0.0)}, "three positive shares that add up to 1"),
        ({"fractions": (0.6, 0.2, 0.2), "dates": (1, 2)}, "by `fractions` or by `dates`"),
        ({"lookback_bars": -1}, "`lookback_bars` must be at least 0"),
        ({"burn_in_bars": -1}, "`burn_in_bars` must be at least 0"),
    ],
)
def test_arguments_without_sense_are_refused(arguments, words):
    with pytest.raises(RangeError) as refused:
        split_by_time(hours(100), HOUR, **{"lookback_bars": 0, "burn_in_bars": 0, **arguments})
    assert words in str(refused.value)


@pytest.mark.refusal
def test_dates_outside_the_data_are_refused():
    with pytest.raises(DataError) as refused:
        split_by_time(
            hours(100),
            HOUR,
            dates=(START + 50 * H, START + 200 * H),
            lookback_bars=0,
            burn_in_bars=0,
        )
    assert str(refused.value) == (
        "validation and test must begin inside the data, in this order; found 2021-01-06T02:00:00Z"
        " and 2021-01-12T08:00:00Z in 100 bars from 2021-01-04T00:00:00Z to 2021-01-08T03:00:00Z."
        " Choose dates between the two. [data-span]"
    )


@pytest.mark.refusal
def test_overlapping_tests_are_refused():
    with pytest.raises(RangeError, match="`step_bars` must be at least 10; found 9"):
        walk_forward(
            hours(100),
            HOUR,
            train_bars=20,
            test_bars=10,
            step_bars=9,
            lookback_bars=0,
            burn_in_bars=0,
        )


@pytest.mark.refusal
def test_unsorted_times_are_refused():
    with pytest.raises(DataError, match="open times must be sorted"):
        split_by_time(hours(100)[::-1], HOUR, lookback_bars=0, burn_in_bars=0)


@pytest.mark.refusal
def test_a_span_that_ends_before_it_starts_is_refused():
    with pytest.raises(RangeError, match="a span must start before it ends"):
        span(5, 5)
