"""No bar of one span can reach another, whatever the sizes and the holes in the data."""

from itertools import pairwise

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from stormsail.core.errors import DataError
from stormsail.market.interval import Interval
from stormsail.market.splits import split_by_time, walk_forward

HOUR = Interval.parse("1h")

bars_back = st.integers(0, 12)


@st.composite
def open_times(draw):
    """Hourly open times with up to half of them missing."""
    count = draw(st.integers(10, 300))
    kept = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    rows = [row for row in range(count) if kept[row] or row % 2]
    return 1_609_718_400_000 + HOUR.milliseconds * np.array(rows, dtype=np.int64)


def rows_read(ts, span, *, lookback, burn_in):
    """Return every row a span reads: warm-up, feature windows, decisions and the last fill."""
    rows = span.rows(ts)
    assert rows.stop - rows.start >= 2
    first = max(rows.start - burn_in - lookback, 0)
    last = min(rows.stop - 1 + 1, len(ts) - 1)
    return set(range(first, last + 1))


def own_rows(ts, span):
    return set(range(*span.rows(ts).indices(len(ts))))


def assert_apart(ts, earlier, later, *, lookback, burn_in, embargo):
    """Check that two spans are apart, and how far."""
    assert earlier.end_ms <= later.start_ms
    assert not earlier.overlaps(later)
    past = rows_read(ts, earlier, lookback=lookback, burn_in=burn_in)
    future = rows_read(ts, later, lookback=lookback, burn_in=burn_in)
    assert not future & own_rows(ts, earlier)  # windows and warm-up never touch what came before
    assert not past & own_rows(ts, later)  # the last fill never reaches what comes after
    if embargo is None:
        assert not past & future
    between = later.rows(ts).start - earlier.rows(ts).stop
    assert between >= max(lookback + burn_in, 1)


@given(open_times(), bars_back, bars_back, st.booleans(), st.floats(0.2, 0.7), st.floats(0.2, 0.8))
def test_no_bar_of_one_part_reaches_another(ts, lookback, burn_in, tight, train, rest):
    embargo = max(lookback + burn_in, 1) if tight else None
    fractions = (train, (1 - train) * rest, (1 - train) * (1 - rest))
    try:
        split = split_by_time(
            ts,
            HOUR,
            fractions=fractions,
            lookback_bars=lookback,
            burn_in_bars=burn_in,
            embargo_bars=embargo,
        )
    except DataError:
        assert len(ts) * min(fractions) <= lookback + burn_in + 1 + 3
        return
    reach = {"lookback": lookback, "burn_in": burn_in, "embargo": embargo}
    assert_apart(ts, split.train, split.validation, **reach)
    assert_apart(ts, split.validation, split.test, **reach)
    assert split.train.start_ms == ts[0]
    assert split.test.end_ms == ts[-1] + HOUR.milliseconds


@given(open_times(), bars_back, bars_back, st.integers(0, 10**6), st.integers(0, 10**6))
def test_dates_are_kept(ts, lookback, burn_in, one, other):
    early, late = sorted((int(ts[one % len(ts)]), int(ts[other % len(ts)])))
    try:
        split = split_by_time(
            ts, HOUR, dates=(early, late), lookback_bars=lookback, burn_in_bars=burn_in
        )
    except DataError:
        return
    assert (split.validation.start_ms, split.test.start_ms) == (early, late)
    reach = {"lookback": lookback, "burn_in": burn_in, "embargo": None}
    assert_apart(ts, split.train, split.validation, **reach)
    assert_apart(ts, split.validation, split.test, **reach)


@given(
    open_times(),
    bars_back,
    bars_back,
    st.integers(2, 40),
    st.integers(2, 20),
    st.integers(0, 10),
    st.booleans(),
    st.booleans(),
)
def test_folds_tile_and_never_touch(
    ts, lookback, burn_in, train_bars, test_bars, extra, anchored, tight
):
    gap = max(lookback + burn_in, 1) if tight else lookback + burn_in + 1
    assume(train_bars + gap + test_bars <= len(ts))
    folds = list(
        walk_forward(
            ts,
            HOUR,
            train_bars=train_bars,
            test_bars=test_bars,
            step_bars=test_bars + extra,
            lookback_bars=lookback,
            burn_in_bars=burn_in,
            embargo_bars=gap if tight else None,
            anchored=anchored,
        )
    )
    assert [fold.number for fold in folds] == list(range(len(folds)))
    for number, fold in enumerate(folds):
        start = train_bars + gap + number * (test_bars + extra)
        assert own_rows(ts, fold.test) == set(range(start, start + test_bars))
        first = 0 if anchored else start - gap - train_bars
        assert own_rows(ts, fold.train) == set(range(first, start - gap))
        assert_apart(
            ts,
            fold.train,
            fold.test,
            lookback=lookback,
            burn_in=burn_in,
            embargo=gap if tight else None,
        )
    for before, after in pairwise(folds):
        assert not before.test.overlaps(after.test)
        if extra == 0:
            assert before.test.rows(ts).stop == after.test.rows(ts).start
    # One more fold would not have fitted.
    assert folds[-1].test.rows(ts).stop + test_bars + extra > len(ts)
