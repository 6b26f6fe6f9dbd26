"""Split-conformal correction of predicted quantiles, and whether it holds on later windows.

W windows, N levels. An option, never the default: it repairs the critic's coverage on average over
windows, from windows that were used for nothing else, and it cannot repair a critic that errs one
way in calm and the other way in storm.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from stormsail.core.errors import ShapeError
from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.calibration.checks import UNIT, Coverage, coverage
from stormsail.evaluation.calibration.windows import Windows
from stormsail.evaluation.stats import figures
from stormsail.evaluation.stats.figures import Array
from stormsail.evaluation.stats.statement import Statement

_ROUNDING = 1e-9  # 0.05 * 20 must read as 1 when it is rounded to a whole rank


@dataclass(frozen=True)
class ConformalShift:
    """What to add to each predicted quantile.

    Attributes:
        levels: [N] the levels it was fitted for.
        shifts: one statement per level; no value where there were too few windows.
        windows: how many windows, sharing no bar, it was fitted on.
    """

    levels: Array
    shifts: tuple[Statement, ...]
    windows: int

    def apply(self, quantiles: ArrayLike) -> Array:
        """Return corrected quantiles, [W, N]; NaN in a column that had too few windows.

        They are not sorted again: each column keeps the guarantee of its own level.

        Raises:
            ShapeError: if there is another number of levels.
        """
        predicted = figures.as_series(quantiles, name="quantiles", columns=True)
        if predicted.shape[-1] != self.levels.size:
            raise ShapeError(
                wrong=f"`quantiles` must have the {self.levels.size} levels of the correction",
                found=str(list(predicted.shape)),
                remedy="Fit the correction on quantiles of the same critic.",
            )
        shifted: Array = np.sort(predicted, axis=-1) + np.array(
            [math.nan if shift.value is None else shift.value for shift in self.shifts]
        )
        return shifted


def conformal_shift(predicted: Windows) -> ConformalShift:
    r"""Return the shift of each quantile under which its coverage is guaranteed.

    With n windows that share no bar, errors e_w = y_w - theta_w at the level tau, and e_(k) the
    k-th lowest of them, the corrected quantile is theta + e_(k), where

    .. math::
        k = \lfloor (n + 1) \tau \rfloor \quad (\tau < 1/2), \qquad
        k = \lceil (n + 1) \tau \rceil \quad (\tau \ge 1/2)

    If those windows and the next one are exchangeable and errors have no ties, the next outcome is
    at or below it with probability k / (n + 1) exactly: at most tau and more than tau - 1 / (n + 1)
    in the lower half, at least tau and less than tau + 1 / (n + 1) in the upper. So a lower
    quantile is passed no more often than it says, whatever the critic and the distribution. The
    probability is over the calibration windows as well as the next one, and over all states
    together.

    Split-conformal prediction with one-sided errors of predicted quantiles, after Romano, Patterson
    & Candès 2019, Conformalized Quantile Regression, arXiv:1905.03222. Deviation: each level is
    corrected alone instead of two as an interval. Overlapping windows are not exchangeable, so only
    the ones of `Windows.disjoint` are used. Markets change, so no guarantee reaches beyond the
    market that the windows came from.

    Args:
        predicted: windows that neither trained nor chose the critic.

    Returns:
        A shift for each level; a level needs n of at least 1 / min(tau, 1 - tau) - 1.
    """
    fitted = predicted.select(predicted.disjoint())
    error = np.sort(fitted.realised[:, None] - fitted.quantiles, axis=0)  # [n, N]
    shifts = tuple(
        _shift(error[:, column], float(level)) for column, level in enumerate(predicted.levels)
    )
    return ConformalShift(predicted.levels, shifts, fitted.count)


def _shift(error: Array, level: float) -> Statement:
    count = error.size
    needed = math.ceil((1.0 / min(level, 1.0 - level)) * (1.0 - _ROUNDING)) - 1
    if count < needed:
        return Statement(None, needed=needed, found=count, unit=UNIT)
    exact = (count + 1) * level
    if level < 0.5:
        rank = math.floor(exact * (1.0 + _ROUNDING))
    else:
        rank = math.ceil(exact * (1.0 - _ROUNDING))
    return Statement(float(error[rank - 1]), needed=needed, found=count, unit=UNIT)


@dataclass(frozen=True)
class ConformalCheck:
    """A correction fitted on the first half of the windows and tested on the second.

    Attributes:
        shift: the correction.
        windows: how many windows it was tested on.
        independent: how many of them share no bar.
        gap_bars: bars between the last fitted start and the first tested one.
        before: coverage of the tested windows as predicted.
        after: their coverage with the correction, at the levels that have one.
    """

    shift: ConformalShift
    windows: int
    independent: int
    gap_bars: int
    before: tuple[Coverage, ...]
    after: tuple[Coverage, ...]

    def document(self) -> dict[str, JsonValue]:
        """Return it as JSON."""
        return {
            "levels": [float(level) for level in self.shift.levels],
            "shifts": [shift.document() for shift in self.shift.shifts],
            "windows": self.shift.windows,
            "judged": self.windows,
            "independent": self.independent,
            "gap_bars": self.gap_bars,
            "before": [entry.document() for entry in self.before],
            "after": [entry.document() for entry in self.after],
        }


def conformal_check(predicted: Windows) -> ConformalCheck:
    """Return the correction fitted on the first half of the windows, tested on the second.

    Tested windows begin a whole horizon after the last fitted one began, or later: no bar that was
    fitted on is tested on.
    """
    middle = int(predicted.starts[predicted.count // 2]) if predicted.count else 0
    shift = conformal_shift(predicted.select(predicted.starts < middle))
    tested = predicted.select(predicted.starts >= middle + predicted.horizon)
    known = np.array([entry.value is not None for entry in shift.shifts], dtype=np.bool_)
    corrected = Windows(
        shift.apply(tested.quantiles)[:, known],
        tested.realised,
        tested.levels[known],
        tested.starts,
        tested.horizon,
    )
    return ConformalCheck(
        shift=shift,
        windows=tested.count,
        independent=tested.independent,
        gap_bars=predicted.horizon,
        before=coverage(tested),
        after=coverage(corrected),
    )
