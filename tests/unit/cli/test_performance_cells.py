"""Cells of the tables that `stormsail performance` prints."""

import math

import pytest

from stormsail.cli.judging.performance import _cell


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("alpha", math.nan, "-"),
        ("information_ratio", math.nan, "-"),
        ("sharpe", None, "-"),
        ("alpha", 0.01234, "+1.23%"),
        ("sharpe", 1.23456, "1.235"),
        ("capital", 40_000.0, "40,000"),
        ("gain", -1_234_567.8, "-1,234,568"),
        ("bars", 263, "263"),
    ],
)
def test_a_cell_is_a_number_of_its_kind_or_a_dash(name, value, shown):
    assert _cell(name, value) == shown
