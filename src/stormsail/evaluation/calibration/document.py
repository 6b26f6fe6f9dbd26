"""Whether a critic's promises came true in a backtest, as plain data.

What is promised, over how many bars it is looked at and what that leaves out stand in
`promised_windows`; the checks themselves in `calibration`, the correction in `conformal`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from stormsail.core.errors import ConfigError
from stormsail.core.files.documents import JsonValue, plain
from stormsail.evaluation.calibration.checks import (
    UNIT,
    Coverage,
    Histogram,
    TailCheck,
    coverage,
    pit_histogram,
    tail_check,
)
from stormsail.evaluation.calibration.conformal import conformal_shift
from stormsail.evaluation.calibration.predictions import (
    REGIME_BARS,
    REGIMES,
    Promises,
    closes_of,
    horizon_of,
    promises_of,
)
from stormsail.evaluation.calibration.windows import Windows
from stormsail.evaluation.engine.result import Backtest
from stormsail.evaluation.stats.figures import Array
from stormsail.evaluation.stats.statement import MINIMUM_BARS, Statement, needed_for_tail

__all__ = ["calibration_document", "closes_of"]

LEVELS = tuple(number / 20 for number in range(1, 20))
"""Levels whose coverage is told; the nearest that the critic predicts stand in for them."""

_WIDTH = float(stats.norm.isf(0.025))  # of a normal interval of 95 %

_NO_LAW = "the critic predicts a mean and no law"


def calibration_document(
    backtests: Sequence[Backtest],
    *,
    alpha: float = 0.05,
    gamma: float | None = None,
    conformal: bool = False,
    closes: Sequence[Array] | None = None,
) -> JsonValue:
    """Return how the critics' predicted laws compare with what the accounts then earned.

    Keys: `what` (in words), `horizon_bars`, `discount`, `left_out` (share of the weight beyond the
    horizon), `bars`, `bars_needed` (for the tail), `windows`, `independent` (that share no bar),
    `levels`, `coverage`, `pit`, `tail`, `value`, `by_regime`, `regimes` (in words), `conformal`,
    `summary` (sentences), and `reason` where nothing could be compared. Figures are documents of
    `Statement`: too few windows give none, with the number needed. By chance one level in
    twenty may not hold; of exact laws over independent bars one in 200 did not, and two tails of
    200, since windows that share bars count once.

    Args:
        backtests: passes of agents of one configuration: folds, seeds.
        alpha: share of worst outcomes.
        gamma: discount of one bar; None takes what the backtests note of their agents.
        conformal: whether to fit the correction on the first half of the windows and judge it on
            the second.
        closes: of the market at the marks of each backtest, from `closes_of`, to tell regimes by;
            None takes the account's own moves.

    Raises:
        ConfigError: if discounts, kinds of critics or bars differ between the backtests.
        RangeError: if a given discount is not in [0, 1].
        ShapeError: if `closes` do not fit.
    """
    discount = _discount(backtests) if gamma is None else gamma
    why = _unfit(backtests, discount)
    if why or discount is None:
        return _nothing(why, alpha=alpha, discount=discount)
    found = promises_of(backtests, gamma=discount, closes=closes)
    horizon, left_out = found.windows.horizon, discount**found.windows.horizon
    bars_needed = needed_for_tail(alpha) * horizon
    by_regime = {label: found.select(found.regimes == label) for label in REGIMES}
    checked = _check(found, alpha)
    levels = _shown(found.windows).levels.tolist()
    told: dict[str, JsonValue] = {
        "horizon_bars": horizon,
        "discount": discount,
        "left_out": left_out,
        "what": _words(discount, horizon, left_out),
        "bars": found.bars,
        "bars_needed": bars_needed,
        "levels": plain(levels),
        **checked.document(),
        "by_regime": {
            label: _check(one, alpha).document()
            for label, one in by_regime.items()
            if one.windows.count
        },
        "regimes": _regime_words("account" if closes is None else "market"),
        "conformal": _corrected(found.windows) if conformal and len(levels) else None,
        "summary": plain(checked.sentences(bars_needed)),
        "reason": "",
    }
    return told


def _discount(backtests: Sequence[Backtest]) -> float | None:
    """Return the discount that all backtests note; None where one does not."""
    noted = [one.notes.get("gamma") for one in backtests]
    known = sorted({float(one) for one in noted if isinstance(one, int | float)})
    if len(known) > 1:
        raise ConfigError(
            "config-inconsistent",
            wrong="backtests that are calibrated together must be of agents with one discount",
            found=", ".join(f"{one:g}" for one in known),
            remedy="Calibrate them one by one.",
        )
    return known[0] if known and all(one is not None for one in noted) else None


def _unfit(backtests: Sequence[Backtest], discount: float | None) -> str:
    """Return why nothing can be compared; empty where something can."""
    if not backtests or any(one.distribution is None or one.value is None for one in backtests):
        return "no critic predicted anything here"
    if discount is None:
        return "the agent's file does not name the discount that its critic was trained with"
    if discount == 1.0:
        return "a sum without discount has no horizon after which it can be judged"
    horizon_of(discount)  # refuses what is no discount at all
    return ""


def _nothing(why: str, *, alpha: float, discount: float | None) -> JsonValue:
    none = _told(Statement(None, why=why))
    return {
        "horizon_bars": 0,
        "discount": discount,
        "left_out": None,
        "what": why,
        "bars": 0,
        "bars_needed": 0,
        "levels": [],
        "windows": 0,
        "independent": 0,
        "coverage": [],
        "pit": {"edges": [], "share": [], "expected": [], "uniformity": none},
        "tail": {
            "alpha": alpha, "predicted": none, "realised": none, "gap": none, "holds": None,
        },
        "value": {"predicted": none, "realised": none, "gap": none},
        "by_regime": {},
        "regimes": "",
        "conformal": None,
        "summary": [f"calibration: {why}"],
        "reason": why,
    }  # fmt: skip


def _words(discount: float, horizon: int, left_out: float) -> str:
    spread = 1.0 - math.sqrt(1.0 - left_out**2)
    return (
        "At each decision the critic predicts the law of a discounted sum: the logarithm of the "
        "account's equity after each bar over what it was before, from that decision on, with the "
        f"discount {discount:g} a bar, under the agent's own decisions as it drew them in training "
        "(a backtest takes the likeliest ones unless told otherwise). An episode that ran out of "
        "time did not end the sum: it went on with the critic's own prediction. A stop ends it. "
        f"Held against it is what the next {horizon} bars brought. Later bars carry "
        f"{left_out:.1%} of the weight and are left out: about that share of the mean, and of the "
        f"spread {spread:.1%} where bars are independent."
    )


def _regime_words(whose: str) -> str:
    return (
        f"By the size of the {whose}'s moves over the {REGIME_BARS} bars before each decision, "
        "ranked among all such spells up to then: lowest third calm, middle usual, highest stormy."
    )


@dataclass(frozen=True, eq=False)
class _Checked:
    """All checks of some windows."""

    windows: Windows
    value: tuple[Statement, Statement, Statement]
    """Predicted mean, the one that came, and the gap."""
    coverage: tuple[Coverage, ...]
    pit: Histogram
    tail: TailCheck

    def document(self) -> dict[str, JsonValue]:
        """Return them as plain data."""
        predicted, realised, gap = (_told(one) for one in self.value)
        return {
            "windows": self.windows.count,
            "independent": self.windows.independent,
            "value": {"predicted": predicted, "realised": realised, "gap": gap},
            "coverage": _coverage(self.coverage),
            "pit": _pit(self.pit),
            "tail": _tail(self.tail),
        }

    def sentences(self, bars_needed: int) -> list[str]:
        """Return what a reader wants first."""
        judged = [one.holds for one in self.coverage if one.holds is not None]
        levels = (
            f"{sum(judged)} of {len(judged)} levels hold" if judged else "no level can be judged"
        )
        tail = self.tail
        if tail.gap.value is None or tail.gap.high is None:
            need = "" if tail.gap.enough else f", about {bars_needed:,} bars"
            worst = f"{tail.gap.reason}{need}"
        else:
            verdict = "no worse than promised" if tail.gap.high >= 0.0 else "worse than promised"
            worst = f"promised {tail.predicted}, came {tail.realised}: {verdict}"
        return [
            f"calibration over {self.windows.count} windows of {self.windows.horizon} bars, "
            f"{self.windows.independent} of which share no bar: {levels}",
            f"mean of the worst {tail.alpha:g}: {worst}",
        ]


def _check(found: Promises, alpha: float) -> _Checked:
    if found.windows.levels.size == 0:
        none, empty = Statement(None, why=_NO_LAW), np.zeros(0)
        histogram = Histogram(empty, empty, empty, none)
        tail = TailCheck(alpha, none, none, none)
        return _Checked(found.windows, _value(found), (), histogram, tail)
    return _Checked(
        windows=found.windows,
        value=_value(found),
        coverage=coverage(_shown(found.windows)),
        pit=pit_histogram(found.windows),
        tail=tail_check(found.windows, alpha=alpha),
    )


def _value(found: Promises) -> tuple[Statement, Statement, Statement]:
    """Return the predicted mean, the mean that came and the gap, with normal intervals."""
    count = found.windows.independent

    def stated(values: Array, *, spread: bool = True) -> Statement:
        if count < MINIMUM_BARS:
            return Statement(None, needed=MINIMUM_BARS, found=count, unit=UNIT)
        mean = float(values.mean())
        reach = _WIDTH * float(values.std(ddof=1)) / math.sqrt(count)
        low, high = (mean - reach, mean + reach) if spread else (None, None)
        return Statement(mean, low, high, MINIMUM_BARS, count, UNIT)

    came = found.windows.realised
    return stated(found.value, spread=False), stated(came), stated(came - found.value)


def _corrected(found: Windows) -> JsonValue:
    """Return the correction fitted on the first half of the windows, judged on the second.

    Judged windows begin a whole horizon after the last fitted one began, or later: no bar that was
    fitted on is judged on.
    """
    shown = _shown(found)
    middle = int(shown.starts[shown.count // 2]) if shown.count else 0
    fitted = shown.select(shown.starts < middle)
    judged = shown.select(shown.starts >= middle + shown.horizon)
    shift = conformal_shift(fitted)
    known = np.array([one.value is not None for one in shift.shifts], dtype=np.bool_)
    moved = Windows(
        shift.apply(judged.quantiles)[:, known],
        judged.realised,
        judged.levels[known],
        judged.starts,
        judged.horizon,
    )
    return {
        "levels": [float(level) for level in shift.levels],
        "shifts": [_told(one) for one in shift.shifts],
        "windows": shift.windows,
        "judged": judged.count,
        "independent": judged.independent,
        "gap_bars": shown.horizon,
        "before": _coverage(coverage(judged)),
        "after": _coverage(coverage(moved)),
    }


def _shown(found: Windows) -> Windows:
    """Return the windows with the levels that are told, the nearest to each of `LEVELS`."""
    if found.levels.size == 0:
        return found
    apart = np.abs(found.levels[:, None] - np.array(LEVELS)).round(12)
    columns = np.unique(apart.argmin(axis=0))
    return Windows(
        found.quantiles[:, columns],
        found.realised,
        found.levels[columns],
        found.starts,
        found.horizon,
    )


def _coverage(checked: tuple[Coverage, ...]) -> JsonValue:
    return [{"level": one.level, "share": _told(one.share), "holds": one.holds} for one in checked]


def _pit(histogram: Histogram) -> JsonValue:
    return {
        "edges": plain(histogram.edges.tolist()),
        "share": plain(histogram.share.tolist()),
        "expected": plain(histogram.expected.tolist()),
        "uniformity": _told(histogram.uniformity),
    }


def _tail(tail: TailCheck) -> JsonValue:
    """`holds`: whether the tail may have been no worse than promised."""
    return {
        "alpha": tail.alpha,
        "predicted": _told(tail.predicted),
        "realised": _told(tail.realised),
        "gap": _told(tail.gap),
        "holds": None if tail.gap.high is None else tail.gap.high >= 0.0,
    }


def _told(stated: Statement) -> JsonValue:
    return plain(stated.document())
