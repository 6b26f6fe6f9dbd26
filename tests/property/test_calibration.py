"""Properties of calibration and of the conformal correction, for any predictions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles import calibration as oracle
from stormsail.evaluation.calibration.checks import pit_histogram
from stormsail.evaluation.calibration.conformal import conformal_shift
from stormsail.evaluation.calibration.windows import windows

NUMBER = st.floats(-5.0, 5.0).map(lambda x: round(x, 1))


@st.composite
def predictions(draw, least=1):
    count, n = draw(st.integers(least, 25)), draw(st.integers(1, 8))
    quantiles = draw(
        st.lists(st.lists(NUMBER, min_size=n, max_size=n), min_size=count, max_size=count)
    )
    realised = draw(st.lists(NUMBER, min_size=count, max_size=count))
    return np.array(quantiles), np.array(realised)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=9), st.integers(1, 8))
def test_no_larger_set_of_windows_shares_no_bar(starts, horizon):
    starts = sorted(starts)
    result = windows(
        np.zeros((len(starts), 1)), np.zeros(len(starts)), horizon=horizon, starts=starts
    )
    assert result.independent == oracle.disjoint(starts, horizon)
    assert np.all(np.diff(result.starts[result.disjoint()]) >= horizon)


@given(predictions(), st.integers(2, 10))
def test_cells_hold_every_outcome_once(case, cells):
    quantiles, realised = case
    given_windows = windows(quantiles, realised)
    result = pit_histogram(given_windows, cells=cells)
    assert result.share.sum() == pytest.approx(1.0, abs=1e-12)
    assert result.expected.sum() == pytest.approx(1.0, abs=1e-12)
    assert result.share.tolist() == pytest.approx(
        oracle.cell_shares(
            quantiles.tolist(),
            realised.tolist(),
            given_windows.levels.tolist(),
            result.edges.tolist(),
        ),
        abs=1e-12,
    )


@given(predictions(), st.floats(-3.0, 3.0), st.floats(0.1, 3.0))
def test_the_histogram_has_no_unit(case, shift, scale):
    quantiles, realised = case
    quantiles = np.sort(quantiles, axis=1) + 1e-3 * np.arange(
        quantiles.shape[1]
    )  # no ties to break by rounding
    realised = realised + 3.3e-4
    moved = pit_histogram(windows(scale * quantiles + shift, scale * realised + shift))
    assert moved.share.tolist() == pit_histogram(windows(quantiles, realised)).share.tolist()


@given(predictions(least=3))
def test_corrected_quantiles_cover_their_own_windows_on_the_safe_side(case):
    """In the windows it was fitted on, rank k of the errors leaves k or more at or below."""
    quantiles, realised = case
    result = conformal_shift(windows(quantiles, realised))
    corrected = result.apply(quantiles)
    for column, (level, shift) in enumerate(zip(result.levels, result.shifts, strict=True)):
        rank = oracle.conformal_rank(realised.size, float(level))
        if rank is None:
            assert shift.value is None
            continue
        slack = 1e-9
        assert np.count_nonzero(realised <= corrected[:, column] + slack) >= rank
        assert np.count_nonzero(realised < corrected[:, column] - slack) <= rank - 1
