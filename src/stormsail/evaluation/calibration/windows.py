"""Calibration windows: predicted quantiles beside realised returns, and how many are independent.

W windows, N levels. A window is the span that a critic predicted a return distribution for: the
next n bars, or the rest of an episode. Windows that begin at every bar share bars, so a hundred of
them that span fifty bars each hold two or three independent outcomes, not a hundred.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from stormsail.core.errors import RangeError, ShapeError
from stormsail.evaluation.stats import figures
from stormsail.evaluation.stats.figures import Array
from stormsail.functional import quantile

Places = NDArray[np.int64]


@dataclass(frozen=True)
class Windows:
    """Predicted quantiles, realised returns, and where each window lies. Made by `windows`.

    Attributes:
        quantiles: [W, N] predicted values, ascending along N.
        realised: [W].
        levels: [N] probabilities the quantiles are meant for, ascending.
        starts: [W] first bar of each window, ascending.
        horizon: bars a window spans.
    """

    quantiles: Array
    realised: Array
    levels: Array
    starts: Places
    horizon: int

    @property
    def count(self) -> int:
        """Number of windows."""
        return self.realised.size

    def select(self, chosen: NDArray[np.bool_] | Places) -> "Windows":
        """Return some of the windows."""
        return Windows(
            self.quantiles[chosen],
            self.realised[chosen],
            self.levels,
            self.starts[chosen],
            self.horizon,
        )

    def at_levels(self, wanted: Sequence[float]) -> "Windows":
        """Return the windows with the predicted levels that are nearest to those wanted alone."""
        if self.levels.size == 0:
            return self
        distance = np.abs(self.levels[:, None] - np.array(wanted)).round(12)
        columns = np.unique(distance.argmin(axis=0))
        return Windows(
            self.quantiles[:, columns],
            self.realised,
            self.levels[columns],
            self.starts,
            self.horizon,
        )

    def disjoint(self) -> Places:
        """Return places of windows that share no bar: the first, and each next one that is free.

        No larger set of disjoint windows exists, since all span the same number of bars.
        """
        places, free_from = [], None
        for place, start in enumerate(self.starts.tolist()):
            if free_from is None or start >= free_from:
                places.append(place)
                free_from = start + self.horizon
        return np.array(places, dtype=np.int64)

    @property
    def independent(self) -> int:
        """Effective sample size: how many windows share no bar with one another.

        Fewer than there really are, since windows that overlap in part are partly new; so the
        intervals built on it are wider than needed, never narrower. It knows of shared bars only:
        where calm and stormy spells outlast a window, neighbours resemble each other all the same.
        """
        return self.disjoint().size

    @property
    def weights(self) -> Array | None:
        """Mass of the cell around each level, [N]; None for equal cells, and for other levels.

        Levels of a critic are the middles of cells that fill (0, 1). A choice of levels is not, and
        counts as equal atoms.
        """
        return cell_weights(self.levels)


def cell_weights(levels: Array) -> Array | None:
    """Return the mass of the cells whose middles are these levels; None if all cells are equal.

    None, too, for levels that are no middles of neighbouring cells from 0 to 1.
    """
    mass: Array = quantile.weights_of(torch.from_numpy(levels)).numpy()
    fills = bool(np.all(mass > 0.0)) and abs(float(mass.sum()) - 1.0) < 1e-9
    return None if not fills or float(np.ptp(mass)) < 1e-9 else mass


def windows(
    quantiles: ArrayLike,
    realised: ArrayLike,
    *,
    levels: ArrayLike | None = None,
    horizon: int = 1,
    starts: ArrayLike | None = None,
) -> Windows:
    """Return checked windows. Quantiles that cross are sorted, as everywhere in the package.

    Args:
        quantiles: [W, N] predicted values.
        realised: [W] what came true, in the same unit.
        levels: [N] ascending, in (0, 1); None for midpoints, (i + 1/2) / N.
        horizon: bars that a window spans; 1 for episodes that share no bar.
        starts: [W] ascending, first bar of each window; None for one at every bar.

    Raises:
        ShapeError: if the shapes do not fit.
        RangeError: if a number is not finite, or levels, starts or horizon are out of order.
    """
    outcomes = figures.as_series(realised, name="realised")
    predicted = figures.as_series(quantiles, name="quantiles", columns=True)
    if predicted.ndim != 2 or predicted.shape[0] != outcomes.size or predicted.shape[1] < 1:
        raise ShapeError(
            wrong=f"`quantiles` must have the shape [{outcomes.size}, N], a row for each window",
            found=str(list(predicted.shape)),
            remedy="Pass the predicted quantiles of each window beside what came true.",
        )
    n = predicted.shape[1]
    level = (np.arange(n) + 0.5) / n if levels is None else figures.as_series(levels, name="levels")
    place = np.arange(outcomes.size) if starts is None else np.asarray(starts, dtype=np.int64)
    if level.shape != (n,) or place.shape != outcomes.shape:
        raise ShapeError(
            wrong=f"`levels` must have the shape [{n}] and `starts` the shape [{outcomes.size}]",
            found=f"{list(level.shape)} and {list(place.shape)}",
            remedy="Pass one level for each quantile and one start for each window.",
        )
    inside = np.all((level > 0.0) & (level < 1.0)) and np.all(np.diff(level) > 0.0)
    if not inside or np.any(np.diff(place) < 0) or horizon < 1:
        raise RangeError(
            wrong="levels must ascend inside (0, 1), starts must not descend, a horizon is 1 bar",
            found=f"levels from {level.min()} to {level.max()} and the horizon {horizon}",
            remedy="Sort windows by time and levels by size.",
        )
    return Windows(np.sort(predicted, axis=1), outcomes, level, place, horizon)
