"""The split-conformal correction keeps its guarantee for any critic."""

import math

import numpy as np
import pytest

from oracles import calibration as oracle
from stormsail.core.errors import ShapeError
from stormsail.evaluation.calibration.conformal import conformal_shift
from stormsail.evaluation.calibration.windows import windows


def stream(seed):
    return np.random.Generator(np.random.PCG64(seed))


def fitted(errors, levels):
    """Fit on windows whose quantiles are all 0, so that errors are the outcomes."""
    quantiles = np.zeros((len(errors), len(levels)))
    return conformal_shift(windows(quantiles, errors, levels=levels))


def test_the_shift_by_hand():
    # Nine errors 1 to 9 in any order: (9 + 1) tau = 2, 5, 8: errors of these ranks.
    result = fitted([3.0, 9.0, 1.0, 7.0, 5.0, 2.0, 8.0, 6.0, 4.0], [0.2, 0.5, 0.8])
    assert [shift.value for shift in result.shifts] == [2.0, 5.0, 8.0]
    assert result.windows == 9
    # 10 tau = 2.5 and 7.5: down in the lower half, up in the upper: both to the safe side.
    result = fitted(np.arange(1.0, 10.0), [0.25, 0.75])
    assert [shift.value for shift in result.shifts] == [2.0, 8.0]


@pytest.mark.parametrize("count", [1, 5, 19, 20, 21, 99, 100])
def test_ranks_are_those_of_the_oracle(count):
    levels = [0.01, 0.05, 0.1, 0.3, 0.5, 0.7, 0.95, 0.99]
    result = fitted(np.arange(1.0, count + 1.0), levels)
    expected = [oracle.conformal_rank(count, level) for level in levels]
    assert [shift.value for shift in result.shifts] == expected


def test_a_level_beyond_the_data_is_named_and_stays_open():
    result = fitted(np.arange(18.0), [0.05, 0.5, 0.95])
    assert result.shifts[0].reason == (
        "not enough data: needs 19 windows that share no bar, found 18"
    )
    assert result.shifts[2].needed == 19
    corrected = result.apply([[0.0, 1.0, 2.0]])
    assert math.isnan(corrected[0, 0])
    assert corrected[0, 1] == 1.0 + result.shifts[1].value
    assert fitted(np.arange(19.0), [0.05]).shifts[0].value == 0.0  # one more is enough


def test_windows_that_share_bars_are_left_out():
    errors = np.arange(40.0)
    quantiles = np.zeros((40, 1))
    result = conformal_shift(windows(quantiles, errors, levels=[0.5], horizon=4))
    assert result.windows == 10
    # Errors 0, 4, ..., 36: rank ceil(11 / 2) = 6 is 20.
    assert result.shifts[0].value == 20.0


@pytest.mark.parametrize("level", [0.1, 0.37, 0.5, 0.9])
def test_the_guarantee_holds_in_simulation(level):
    # A critic that is badly wrong: it predicts the quantile of a third of the true spread, shifted.
    # 30 calibration windows and one new one, 4,000 times: coverage k / 31 exactly.
    draws = stream(7)
    count, repeats = 30, 4_000
    rank = oracle.conformal_rank(count, level)
    covered = 0
    for _ in range(repeats):
        state = draws.standard_normal(count + 1)
        realised = state + np.exp(0.5 * state) * draws.standard_t(3, count + 1)
        critic = (0.3 * state - 2.0)[:, None]
        result = conformal_shift(windows(critic[:count], realised[:count], levels=[level]))
        covered += realised[count] <= result.apply(critic[count:])[0, 0]
    exact = rank / (count + 1)
    assert (exact <= level) if level < 0.5 else (exact >= level)
    assert abs(exact - level) < 1.0 / (count + 1)
    assert covered / repeats == pytest.approx(exact, abs=4.0 * math.sqrt(0.25 / repeats))


def test_corrected_quantiles_keep_the_order_of_levels_and_not_of_columns():
    result = fitted(np.arange(1.0, 10.0), [0.2, 0.8])
    assert result.apply([[5.0, -5.0]]).tolist() == [[-3.0, 13.0]]


@pytest.mark.refusal
def test_another_number_of_levels_is_refused():
    with pytest.raises(
        ShapeError, match=r"must have the 2 levels of the correction; found \[1, 3\]"
    ):
        fitted(np.arange(9.0), [0.2, 0.8]).apply([[0.0, 1.0, 2.0]])
