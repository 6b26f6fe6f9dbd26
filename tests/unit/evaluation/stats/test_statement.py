"""A statement has a value, or says how much data it lacks."""

import math

import pytest

from stormsail.core.errors import RangeError
from stormsail.evaluation.stats.statement import Statement, needed_for_tail, state


def test_too_little_data_is_named_with_the_number_needed():
    statement = state(lambda: 1 / 0, needed=30, found=12, unit="trades")
    assert statement.value is None
    assert not statement.enough
    assert statement.reason == "not enough data: needs 30 trades, found 12"
    assert str(statement) == statement.reason


def test_exactly_enough_data_is_enough():
    assert state(lambda: 2.5, needed=30, found=30) == Statement(2.5, needed=30, found=30)
    assert state(lambda: 2.5, needed=30, found=29).value is None


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_not_defined_and_says_why(number):
    statement = state(lambda: number, needed=1, found=5, why="equity never fell")
    assert statement.value is None
    assert statement.enough
    assert statement.reason == "equity never fell"


def test_a_value_has_no_reason_and_shows_its_interval():
    assert Statement(0.5, 0.25, 0.75, 10, 20).reason == ""
    assert str(Statement(0.5, 0.25, 0.75, 10, 20)) == "0.5 [0.25, 0.75]"
    assert str(Statement(0.5)) == "0.5"


def test_a_document_holds_no_number_that_json_refuses():
    assert Statement(0.5, -math.inf, math.inf, 10, 20).document() == {
        "value": 0.5,
        "low": None,
        "high": None,
        "needed": 10,
        "found": 20,
        "unit": "bars",
        "reason": "",
    }


@pytest.mark.refusal
def test_a_value_without_its_data_is_refused():
    with pytest.raises(RangeError) as caught:
        Statement(1.5, needed=30, found=12)
    assert str(caught.value) == (
        "a statement must need at most the 12 bars it has; found the value 1.5 although it needs "
        "30. Leave the value out, or need less. [out-of-range]"
    )


@pytest.mark.refusal
@pytest.mark.parametrize("name", ["value", "low", "high"])
def test_nan_is_refused(name):
    with pytest.raises(RangeError, match=f"`{name}` of a statement must be a number or None"):
        Statement(**{"value": 1.0, name: math.nan})


@pytest.mark.parametrize(("alpha", "needed"), [(0.05, 200), (0.1, 100), (0.07, 143), (1.0, 30)])
def test_a_tail_needs_ten_outcomes_in_it_and_thirty_in_all(alpha, needed):
    assert needed_for_tail(alpha) == needed
