"""Calibration checks of predicted return distributions: coverage, PIT histogram, mean and tail.

W windows, N levels. A critic that trains on tail risk is only as good as its tail, so what it
predicted is compared with what happened, as a whole and in each regime.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import chdtrc, ndtri  # tail of chi-square, inverse of the normal distribution

from stormsail.core.errors import ShapeError
from stormsail.core.files.documents import JsonValue, Record
from stormsail.evaluation.calibration.windows import Windows
from stormsail.evaluation.stats import figures
from stormsail.evaluation.stats.figures import Array
from stormsail.evaluation.stats.statement import MINIMUM_BARS, Statement, needed_for_tail
from stormsail.functional import risk

UNIT = "windows that share no bar"

MINIMUM_EXPECTED = 5
"""Outcomes expected in each cell, for a chi-square statistic to follow its distribution."""

_MEAN_ONLY = "the critic predicts a mean and no distribution"
_WIDTH = -float(ndtri(0.025))  # of a normal interval of 95 %


@dataclass(frozen=True)
class Coverage(Record):
    """How often outcomes stayed at or below the quantile of one level.

    Attributes:
        level: the predicted probability.
        share: the realised one, with an exact binomial interval at the effective sample size.
        holds: whether the interval contains the level; None without enough data.
    """

    level: float
    share: Statement
    holds: bool | None


@dataclass(frozen=True)
class Histogram(Record):
    """Probability integral transform in cells, and whether it is level.

    Attributes:
        edges: [M + 1] from 0 to 1; all but the ends are predicted levels.
        share: [M] of the outcomes in each cell.
        expected: [M] of a calibrated critic: the widths of the cells.
        uniformity: p-value of a chi-square test that outcomes follow the expected shares.
    """

    edges: Array
    share: Array
    expected: Array
    uniformity: Statement


@dataclass(frozen=True)
class MeanCheck(Record):
    """The predicted mean against the realised one.

    Attributes:
        predicted: mean over the windows of the predicted mean.
        realised: mean outcome, with its interval.
        gap: realised minus predicted, with its interval.
    """

    predicted: Statement
    realised: Statement
    gap: Statement


@dataclass(frozen=True)
class TailCheck(Record):
    """The predicted CVaR against the realised one.

    Attributes:
        alpha: share of worst outcomes.
        predicted: mean over the windows of the predicted CVaR.
        realised: realised CVaR, with its interval.
        gap: realised minus predicted, with its interval: below 0 the tail was worse than predicted.
    """

    alpha: float
    predicted: Statement
    realised: Statement
    gap: Statement

    @property
    def holds(self) -> bool | None:
        """Whether the tail may have been no worse than predicted; None where it is not known."""
        return None if self.gap.high is None else self.gap.high >= 0.0

    def document(self) -> dict[str, JsonValue]:
        """Return it as JSON."""
        return {**super().document(), "holds": self.holds}


@dataclass(frozen=True)
class Calibration:
    """All checks of one set of windows.

    Attributes:
        windows: how many there are.
        independent: how many of them share no bar.
        mean: predicted and realised mean; None where no mean was predicted.
        coverage: one entry per level.
        histogram: of the probability integral transform.
        tail: predicted and realised CVaR.
    """

    windows: int
    independent: int
    mean: MeanCheck | None
    coverage: tuple[Coverage, ...]
    histogram: Histogram
    tail: TailCheck

    def document(self) -> dict[str, JsonValue]:
        """Return the checks as JSON."""
        return {
            "windows": self.windows,
            "independent": self.independent,
            "value": None if self.mean is None else self.mean.document(),
            "coverage": [entry.document() for entry in self.coverage],
            "pit": self.histogram.document(),
            "tail": self.tail.document(),
        }


def nothing_checked(alpha: float, why: str) -> Calibration:
    """Return the checks where there is nothing to compare, with the reason in every figure."""
    none = Statement(None, why=why)
    return Calibration(0, 0, MeanCheck(none, none, none), (), *_no_distribution(alpha, none))


def _no_distribution(alpha: float, none: Statement) -> tuple[Histogram, TailCheck]:
    empty = np.zeros(0)
    return Histogram(empty, empty, empty, none), TailCheck(alpha, none, none, none)


def calibrate(
    predicted: Windows,
    *,
    mean: Array | None = None,
    levels: Sequence[float] | None = None,
    alpha: float = 0.05,
) -> Calibration:
    """Return coverage, PIT histogram, mean and tail check of predicted return distributions.

    Args:
        predicted: the windows; without any levels, of critics that predict a mean alone.
        mean: [W] predicted means; None where none were.
        levels: of the coverage, each stands for the nearest predicted one; None for all of them.
        alpha: share of worst outcomes.
    """
    checked = None if mean is None else mean_check(predicted, mean)
    count, independent = predicted.count, predicted.independent
    if predicted.levels.size == 0:
        parts = _no_distribution(alpha, Statement(None, why=_MEAN_ONLY))
        return Calibration(count, independent, checked, (), *parts)
    return Calibration(
        windows=count,
        independent=independent,
        mean=checked,
        coverage=coverage(predicted if levels is None else predicted.at_levels(levels)),
        histogram=pit_histogram(predicted),
        tail=tail_check(predicted, alpha=alpha),
    )


def calibrate_by_regime(
    predicted: Windows,
    regimes: Sequence[str],
    *,
    mean: Array | None = None,
    levels: Sequence[float] | None = None,
    alpha: float = 0.05,
) -> dict[str, Calibration]:
    """Return the checks of each regime, by label in alphabetical order.

    `regimes` labels each window, [W], by what was known when it began; the rest is as in
    `calibrate`.

    Raises:
        ShapeError: if there is not one label per window.
    """
    labels = np.asarray(regimes, dtype=object)
    if labels.shape != (predicted.count,):
        raise ShapeError(
            wrong=f"`regimes` must have one label for each of the {predicted.count} windows",
            found=str(list(labels.shape)),
            remedy="Label each window by the regime in which it began.",
        )
    return {
        label: calibrate(
            predicted.select(labels == label),
            mean=None if mean is None else mean[labels == label],
            levels=levels,
            alpha=alpha,
        )
        for label in sorted({str(label) for label in regimes})
    }


def mean_check(predicted: Windows, mean: Array) -> MeanCheck:
    """Return the predicted mean, [W], against the realised one, with normal intervals of 95 %."""
    count = predicted.independent

    def stated(values: Array, *, spread: bool = True) -> Statement:
        if count < MINIMUM_BARS:
            return Statement(None, needed=MINIMUM_BARS, found=count, unit=UNIT)
        average = float(values.mean())
        reach = _WIDTH * float(values.std(ddof=1)) / math.sqrt(count)
        low, high = (average - reach, average + reach) if spread else (None, None)
        return Statement(average, low, high, MINIMUM_BARS, count, UNIT)

    realised = predicted.realised
    return MeanCheck(stated(mean, spread=False), stated(realised), stated(realised - mean))


def coverage(predicted: Windows, *, confidence: float = 0.95) -> tuple[Coverage, ...]:
    r"""Return for each level how often the outcome was at or below the predicted quantile.

    .. math::
        \hat p_i = \frac1W \sum_w [\, y_w \le \theta_{w,i} \,]

    A calibrated critic has p_i = tau_i. The interval is that of Clopper & Pearson for
    n = `independent` trials, with the share rounded outwards to whole outcomes of n, so windows
    that share bars are not counted twice. A level needs 10 independent outcomes on its rarer side.
    """
    hits = np.count_nonzero(predicted.realised[:, None] <= predicted.quantiles, axis=0)
    hit = hits / max(predicted.count, 1)
    independent = predicted.independent
    return tuple(
        _covered(float(level), float(share), independent, confidence)
        for level, share in zip(predicted.levels, hit, strict=True)
    )


def _covered(level: float, share: float, count: int, confidence: float) -> Coverage:
    needed = needed_for_tail(min(level, 1.0 - level))
    if count < needed:
        return Coverage(level, Statement(None, needed=needed, found=count, unit=UNIT), None)
    # Rounding outwards: the interval for the fewest and the most whole outcomes that fit.
    few, many = math.floor(share * count + 1e-9), math.ceil(share * count - 1e-9)
    low, _ = figures.binomial_interval(few, count, confidence=confidence, method="exact")
    _, high = figures.binomial_interval(many, count, confidence=confidence, method="exact")
    stated = Statement(share, low, high, needed=needed, found=count, unit=UNIT)
    return Coverage(level, stated, low <= level <= high)


def pit_histogram(predicted: Windows, *, cells: int = 10) -> Histogram:
    r"""Return how outcomes spread over the predicted levels, and whether that is chance.

    Cells end at predicted levels, so their expected shares are exact whatever lies between two
    quantiles. With n independent outcomes, shares f_m and widths p_m,

    .. math::
        \chi^2 = n \sum_m \frac{(f_m - p_m)^2}{p_m}

    follows the chi-square distribution with M - 1 degrees of freedom. It assumes that outcomes
    count as n = `independent` draws: windows that share no bar. Dependence beyond shared bars makes
    the p-value too small. Needs 5 expected independent outcomes in the smallest cell.

    Args:
        predicted: the windows.
        cells: at most; fewer where there are fewer levels.
    """
    edges = _edges(predicted.levels, cells)
    rank = np.count_nonzero(predicted.quantiles < predicted.realised[:, None], axis=1)
    # An outcome above r quantiles lies in the gap behind level r - 1: cells are sets of gaps.
    gap_cell = np.searchsorted(edges[1:-1], np.concatenate(([0.0], predicted.levels)), side="right")
    counts = np.bincount(gap_cell[rank], minlength=edges.size - 1)
    share = counts / max(predicted.count, 1)
    expected = np.diff(edges)
    independent = predicted.independent
    needed = math.ceil(MINIMUM_EXPECTED / expected.min() * (1.0 - 1e-12))
    value = None
    if independent >= needed:
        statistic = independent * float(np.sum((share - expected) ** 2 / expected))
        value = float(chdtrc(expected.size - 1, statistic))
    stated = Statement(value, needed=needed, found=independent, unit=UNIT)
    return Histogram(edges, share, expected, stated)


def _edges(levels: Array, cells: int) -> Array:
    """Return 0, the levels nearest to equal steps, and 1; of two equally near ones the lower."""
    wanted = np.arange(1, cells) / cells
    nearest = np.abs(levels[:, None] - wanted).round(12).argmin(axis=0)
    return np.concatenate(([0.0], levels[np.unique(nearest)], [1.0]))


def tail_check(
    predicted: Windows, *, alpha: float = 0.05, confidence: float = 0.95, estimator: str = "dirac"
) -> TailCheck:
    r"""Return the predicted CVaR against the realised one.

    Each window has a distribution of its own, so pooling outcomes would mix calm and stormy ones.
    Instead each outcome is measured against its own window's value at risk v:

    .. math::
        \hat c = \frac1W \sum_w \Big[ v_w + \frac1\alpha \min(y_w - v_w, 0) \Big]

    This is the variational form of CVaR (Rockafellar & Uryasev 2000, J. Risk 2(3):21-41, there for
    losses): as a function of v the mean of the bracket has the slope 1 - F(v) / alpha, so it rises
    up to the true value at risk, is the true CVaR there, and nowhere exceeds it. A wrong v is held
    against the critic. The bracket minus the CVaR is also the influence function of CVaR, so the
    interval is normal, with the deviation of the brackets over the root of `independent`.

    Even exact quantiles have a coarse tail: with `dirac` the predicted CVaR of a normal
    distribution is 5 % too mild at N = 21 and 2 % at N = 51 (`functional.risk.cvar`).

    Args:
        predicted: windows at the levels of a critic, the middles of cells that share the mass.
        alpha: share of worst outcomes.
        confidence: coverage of the intervals.
        estimator: `dirac` or `linear`, as in `functional.risk.cvar`.
    """
    needed, count = needed_for_tail(alpha), predicted.independent
    if count < needed:
        short = Statement(None, needed=needed, found=count, unit=UNIT)
        return TailCheck(alpha, short, short, short)
    quantiles = torch.from_numpy(predicted.quantiles)
    mass = None if predicted.weights is None else torch.from_numpy(predicted.weights)
    level = risk.value_at_risk(quantiles, alpha=alpha, weight=mass).numpy()
    forecast = risk.cvar(quantiles, alpha=alpha, estimator=estimator, weight=mass).numpy()
    realised = level + np.minimum(predicted.realised - level, 0.0) / alpha
    width = -float(ndtri((1.0 - confidence) / 2))

    def stated(values: Array) -> Statement:
        mean, error = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(count)
        reach = width * error
        return Statement(mean, mean - reach, mean + reach, needed, count, UNIT)

    return TailCheck(
        alpha,
        Statement(float(forecast.mean()), needed=needed, found=count, unit=UNIT),
        stated(realised),
        stated(realised - forecast),
    )
