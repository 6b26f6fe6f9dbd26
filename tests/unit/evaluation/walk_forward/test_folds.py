"""Folds: no bar in two roles, no hole between tests, and how many bars are needed."""

import numpy as np
import pytest

from stormsail.core.errors import ConfigError, DataError, RangeError
from stormsail.evaluation.walk_forward.config import ValidationConfig
from stormsail.evaluation.walk_forward.folds import plan_folds
from stormsail.market.interval import Interval

HOUR = Interval.parse("1h")
STEP = HOUR.milliseconds
LOOKBACK, BURN_IN = 6, 5
GAP = LOOKBACK + BURN_IN + 1


def times(count):
    return STEP * np.arange(count, dtype=np.int64)


def config(**changes):
    return ValidationConfig.from_mapping({"burn_in": BURN_IN, **changes})


def plan(count, **changes):
    return plan_folds(times(count), HOUR, config(**changes), lookback=LOOKBACK)


def rows(span):
    return set(range(span.start_ms // STEP, span.end_ms // STEP))


@pytest.mark.parametrize("folds", [1, 2, 5])
@pytest.mark.parametrize("train_bars", [None, 200])
@pytest.mark.parametrize("count", [900, 1001, 1337])
@pytest.mark.parametrize("share", [0.1, 0.3])
def test_no_fold_shares_a_bar_with_its_training_and_embargo(folds, train_bars, count, share):
    made = plan(count, folds=folds, train_bars=train_bars, test_share=share)
    assert len(made.folds) == folds
    for fold in (*made.folds, made.final):
        train, test = rows(fold.train), rows(fold.test)
        assert max(train) + GAP + 1 == min(test)
        # what the first decision reads, and the fill of the last training bar
        read = range(min(test) - BURN_IN - LOOKBACK, max(test) + 1)
        assert not {*train, max(train) + 1} & set(read)
    tests = [rows(fold.test) for fold in made.folds]
    assert sorted(set().union(*tests)) == list(range(min(tests[0]), max(tests[-1]) + 1))
    assert sum(map(len, tests)) == max(tests[-1]) + 1 - min(tests[0])
    final = rows(made.final.test)
    assert len(final) == round(count * share)
    assert max(final) == count - 1
    assert max(tests[-1]) + GAP + 1 == min(final)
    assert max(rows(made.development)) == max(tests[-1])


def test_each_pass_ends_at_the_close_where_the_next_begins():
    made = plan(900, folds=3)
    marks = [fold.marks(times(900), HOUR) for fold in made.folds]
    assert marks[0][-1] == marks[1][0]
    assert marks[1][-1] == marks[2][0]
    joined = np.concatenate([marks[0], marks[1][1:], marks[2][1:]])
    assert np.diff(joined).tolist() == [STEP] * (len(joined) - 1)
    assert len(joined) == sum(len(rows(fold.test)) for fold in made.folds)


def test_an_anchored_training_grows_and_a_given_one_moves():
    grows = plan(900, folds=3)
    assert [fold.train.start_ms for fold in (*grows.folds, grows.final)] == [0] * 4
    moves = plan(900, folds=3, train_bars=150)
    assert [len(rows(fold.train)) for fold in (*moves.folds, moves.final)] == [150] * 4
    assert rows(moves.final.train) == set(range(900 - 135 - GAP - 150, 900 - 135 - GAP))


def test_half_of_the_bars_train_first():
    made = plan(1_000, folds=5)
    # 1000 - 150 of the test span - 12: 838 rows; (838 - 12) // 10 = 82 in each fold
    assert [len(rows(fold.test)) for fold in made.folds] == [82] * 5
    assert len(rows(made.folds[0].train)) == 838 - 12 - 5 * 82


@pytest.mark.refusal
@pytest.mark.parametrize("changes", [{}, {"train_bars": 77}, {"test_share": 0.02}, {"folds": 1}])
def test_too_few_bars_are_refused_with_the_number_needed(changes):
    with pytest.raises(DataError) as refused:
        plan(50, **changes)
    needed = int(refused.value.wrong.split("at least ")[1].split(" ")[0])
    plan(needed, **changes)
    with pytest.raises(DataError, match=f"at least {needed} bars"):
        plan(needed - 1, **changes)


@pytest.mark.refusal
def test_the_refusal_of_too_few_bars_in_its_words():
    with pytest.raises(DataError) as refused:
        plan(300, folds=4)
    # 2 · 12 of embargo and 2 · 4 · 30 bars are 264; 15 % of 310 are 46.5, so 46, and leave 264
    assert str(refused.value) == (
        "a validation with 4 folds must have at least 310 bars: 30 to trade in each fold and in "
        "the final test span, 12 before each of them, and what is trained on; found 300 bars from "
        "1970-01-01T00:00:00Z to 1970-01-13T11:00:00Z. Bring more data, fewer folds, a smaller "
        "`train_bars` or a shorter lookback. [data-span]"
    )


@pytest.mark.refusal
def test_an_embargo_below_lookback_and_burn_in_is_refused():
    with pytest.raises(RangeError, match="`embargo_bars` must be at least 11"):
        plan(900, embargo_bars=10)
    assert plan(900, embargo_bars=40).embargo == 40


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seeds": (1, 1)}, "different whole numbers"),
        ({"seeds": ()}, "one or more"),
        ({"backtest": {"start": "2024-01-01T00:00:00Z"}}, "`backtest.start` must be left out"),
        ({"backtest": {"pool_bars": 24}}, "`backtest.pool_bars` must be left out"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        config(**changes)
