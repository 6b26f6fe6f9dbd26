"""Calibration of the critics of some backtests: all checks, by regime, and as a JSON document.

What is predicted, over how many bars it is compared and what that leaves out stand in
`predictions`; the checks themselves in `checks`, the correction in `conformal`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stormsail.core.errors import ConfigError
from stormsail.core.files.documents import JsonValue, plain
from stormsail.evaluation.calibration.checks import (
    Calibration,
    TailCheck,
    calibrate,
    calibrate_by_regime,
    nothing_checked,
)
from stormsail.evaluation.calibration.conformal import ConformalCheck, conformal_check
from stormsail.evaluation.calibration.judged_tail import judged_tail
from stormsail.evaluation.calibration.predictions import (
    REGIME_BARS,
    REGIMES,
    horizon_of,
    predictions_of,
)
from stormsail.evaluation.engine.result import Backtest
from stormsail.evaluation.stats.figures import Array
from stormsail.evaluation.stats.statement import needed_for_tail
from stormsail.market.rewards import LOG_GROWTH

LEVELS = tuple(number / 20 for number in range(1, 20))
"""Levels whose coverage is reported; the nearest that the critic predicts stand in for them."""


@dataclass(frozen=True, eq=False)
class CalibrationReport:
    """How the predicted return distributions compare with the realised returns.

    Attributes:
        checks: of all windows.
        discount: of one bar; None where it is not known.
        horizon: bars that a window spans; 0 where nothing could be compared.
        bars: decisions of the backtests, those of one moment counted once.
        by_regime: the checks of each regime that has windows.
        regimes_of: whose moves tell the regimes: `account` or `market`.
        conformal: the correction and its test, where it was asked for.
        judged_horizon: bars of the longest windows whose tail can be judged, where those of
            `horizon` are too few; None where they suffice or nothing can be judged.
        judged_tail: the tail there (`judged_tail`).
        reason: why nothing could be compared; empty where something could.
    """

    checks: Calibration
    discount: float | None
    horizon: int = 0
    bars: int = 0
    by_regime: Mapping[str, Calibration] = field(default_factory=dict)
    regimes_of: str = ""
    conformal: ConformalCheck | None = None
    judged_horizon: int | None = None
    judged_tail: TailCheck | None = None
    reason: str = ""

    @property
    def left_out(self) -> float | None:
        """Share of the discounted weight beyond the horizon."""
        return None if self.reason or self.discount is None else self.discount**self.horizon

    @property
    def bars_needed(self) -> int:
        """Bars that the check of the tail needs."""
        return needed_for_tail(self.checks.tail.alpha) * self.horizon

    @property
    def summary(self) -> list[str]:
        """What a reader wants first, in sentences."""
        if self.reason:
            return [f"calibration: {self.reason}"]
        known = [entry.holds for entry in self.checks.coverage if entry.holds is not None]
        levels = f"{sum(known)} of {len(known)} levels hold" if known else "no level can be judged"
        tail = self.checks.tail
        if tail.gap.value is None or tail.gap.high is None:
            need = "" if tail.gap.enough else f", about {self.bars_needed:,} bars"
            worst = f"{tail.gap.reason}{need}"
        else:
            verdict = "no worse than predicted" if tail.holds else "worse than predicted"
            worst = f"predicted {tail.predicted}, realised {tail.realised}: {verdict}"
        return [
            f"calibration over {self.checks.windows} windows of {self.horizon} bars, "
            f"{self.checks.independent} of which share no bar: {levels}",
            f"mean of the worst {tail.alpha:g}: {worst}",
        ]

    def document(self) -> dict[str, JsonValue]:
        """Return everything as JSON.

        Keys: `what` (in words), `horizon_bars`, `discount`, `left_out` (share of the weight beyond
        the horizon), `bars`, `bars_needed` (for the tail), `windows`, `independent` (that share no
        bar), `levels`, `coverage`, `pit`, `tail`, `value` (the mean), `by_regime`, `regimes` (in
        words), `conformal`, `judged_horizon` and `judged_tail` (the longest windows that can be
        judged, where the critic's are too few), `summary` (sentences), and `reason` where nothing
        could be compared. Figures are documents of `Statement`: too few windows give none, with
        the number needed.
        """
        return {
            "horizon_bars": self.horizon,
            "discount": self.discount,
            "left_out": self.left_out,
            "what": self._predicted_words(),
            "bars": self.bars,
            "bars_needed": self.bars_needed,
            "levels": [entry.level for entry in self.checks.coverage],
            **self.checks.document(),
            "by_regime": {label: checks.document() for label, checks in self.by_regime.items()},
            "regimes": self._regime_words(),
            "conformal": None if self.conformal is None else self.conformal.document(),
            "judged_horizon": self.judged_horizon,
            "judged_tail": None if self.judged_tail is None else self.judged_tail.document(),
            "summary": plain(self.summary),
            "reason": self.reason,
        }

    def _predicted_words(self) -> str:
        left_out = self.left_out
        if left_out is None:
            return self.reason
        spread = 1.0 - math.sqrt(1.0 - left_out**2)
        return (
            "At each decision the critic predicts the distribution of a discounted sum: the "
            "logarithm of the account's equity after each bar over what it was before, from that "
            f"decision on, with the discount {self.discount:g} a bar, under the agent's own "
            "decisions as it drew them in training (a backtest takes the likeliest ones unless "
            "told otherwise). An episode that ran out of time did not end the sum: it went on "
            "with the critic's own prediction. A stop ends it. It is compared with what the next "
            f"{self.horizon} bars brought. Later bars carry {left_out:.1%} of the weight and are "
            f"left out: about that share of the mean, and of the spread {spread:.1%} where bars "
            "are independent."
        )

    def _regime_words(self) -> str:
        if not self.regimes_of:
            return ""
        return (
            f"By the size of the {self.regimes_of}'s moves over the {REGIME_BARS} bars before each "
            "decision, ranked among all such spells up to then: lowest third calm, middle usual, "
            "highest stormy."
        )


def calibration_of(
    backtests: Sequence[Backtest],
    *,
    alpha: float = 0.05,
    gamma: float | None = None,
    conformal: bool = False,
    closes: Sequence[Array] | None = None,
) -> CalibrationReport:
    """Return how the critics' predicted distributions compare with the accounts' returns.

    By chance one level in twenty may not hold; of exact distributions over independent bars one in
    200 did not, and two tails of 200, since windows that share bars count once.

    Args:
        backtests: passes of agents of one configuration: folds, seeds.
        alpha: share of worst outcomes.
        gamma: discount of one bar; None takes what the backtests note of their agents.
        conformal: whether to fit the correction on the first half of the windows and test it on
            the second.
        closes: of the market at the marks of each backtest, from `closes_of`, to tell regimes by;
            None takes the account's own moves.

    Raises:
        ConfigError: if discounts, kinds of critics or bars differ between the backtests.
        RangeError: if a given discount is not in [0, 1].
        ShapeError: if `closes` do not fit.
    """
    discount = _discount(backtests) if gamma is None else gamma
    why = _incomparable(backtests, discount)
    if why or discount is None:
        return CalibrationReport(nothing_checked(alpha, why), discount, reason=why)
    predictions = predictions_of(backtests, gamma=discount, closes=closes)
    windows, mean = predictions.windows, predictions.mean
    regimes = calibrate_by_regime(
        windows, predictions.regimes.tolist(), mean=mean, levels=LEVELS, alpha=alpha
    )
    checks = calibrate(windows, mean=mean, levels=LEVELS, alpha=alpha)
    shorter = None
    if not checks.tail.gap.enough:
        shorter = judged_tail(backtests, gamma=discount, alpha=alpha, longest=windows.horizon)
    return CalibrationReport(
        checks=checks,
        discount=discount,
        horizon=windows.horizon,
        bars=predictions.bars,
        by_regime={label: regimes[label] for label in REGIMES if label in regimes},
        regimes_of="account" if closes is None else "market",
        conformal=conformal_check(windows.at_levels(LEVELS))
        if conformal and windows.levels.size
        else None,
        judged_horizon=None if shorter is None else shorter[0],
        judged_tail=None if shorter is None else shorter[1],
    )


def _discount(backtests: Sequence[Backtest]) -> float | None:
    """Return the discount that all backtests note; None where one does not."""
    noted = [backtest.notes.get("gamma") for backtest in backtests]
    known = sorted({float(gamma) for gamma in noted if isinstance(gamma, int | float)})
    if len(known) > 1:
        raise ConfigError(
            "config-inconsistent",
            wrong="backtests that are calibrated together must be of agents with one discount",
            found=", ".join(f"{gamma:g}" for gamma in known),
            remedy="Calibrate them one by one.",
        )
    return known[0] if known and all(gamma is not None for gamma in noted) else None


def _incomparable(backtests: Sequence[Backtest], discount: float | None) -> str:
    """Return why nothing can be compared; empty where something can."""
    predicted = [backtest.distribution is not None for backtest in backtests]
    valued = [backtest.value is not None for backtest in backtests]
    if not backtests or not all(predicted + valued):
        return "no critic predicted anything here"
    others = sorted({one.market.reward for one in backtests} - {LOG_GROWTH})
    if others:
        return (
            f"the critic predicts sums of the reward `{others[0]}`, and an account's bars show log "
            "growth"
        )
    if discount is None:
        return "the agent's file does not name the discount that its critic was trained with"
    if discount == 1.0:
        return "a sum without discount has no horizon after which it can be judged"
    horizon_of(discount)  # refuses what is no discount at all
    return ""
