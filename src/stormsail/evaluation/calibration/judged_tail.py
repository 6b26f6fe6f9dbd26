"""The tail at the longest horizon that can be judged, where a critic's own is too long for it.

N decisions, L levels, W windows of h bars, discount g. A critic predicts the distribution Z of a
discounted sum without end; at a discount of .99 a window of it takes 230 bars, and a tail of 5 %
takes 200 windows that share no bar. Over fewer bars its own equation can be judged instead,

    Z_t  =  r_t + g r_{t+1} + ... + g^(h-1) r_{t+h-1}  +  g^h Z_{t+h}    in distribution,

with the rewards that came true and what the critic predicted h bars later. A distribution that
keeps it at one h for every state is the true one (Bellemare, Dabney & Munos 2017, A Distributional
Perspective on Reinforcement Learning, lemma 3: the operator is a contraction in the Wasserstein
metric). It is a weaker test than the full window: of an error of the tail the share 1 - g^h is
seen.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from stormsail.core.generators import Generators
from stormsail.evaluation.calibration.checks import UNIT, TailCheck
from stormsail.evaluation.calibration.predictions import (
    WINDOWS_PER_HORIZON,
    discounted,
    levels_of,
    quantiles_of,
    rewards_of,
    window_starts,
)
from stormsail.evaluation.calibration.windows import cell_weights
from stormsail.evaluation.engine.result import Backtest
from stormsail.evaluation.stats.bootstrap import block_mean_interval
from stormsail.evaluation.stats.figures import Array
from stormsail.evaluation.stats.statement import Statement, needed_for_tail
from stormsail.functional import risk

LEAST_MS = 3_600_000
"""No horizon shorter than an hour is judged: a limit on anything less helps nobody."""

BLOCK_HORIZONS = 4
"""Horizons in a block of the bootstrap: neighbours share bars over one of them."""


def judged_horizon(
    decisions: Sequence[int], *, alpha: float, bar_ms: int, longest: int
) -> int | None:
    """Return the most bars of which enough windows fit; None where an hour is too long.

    A window of h bars needs a prediction at its end, so (n - 1) // h of them fit into a fold of n
    decisions.

    Args:
        decisions: of each fold.
        alpha: share of worst outcomes.
        bar_ms: length of a bar.
        longest: bars that the horizon must not exceed.
    """
    needed = needed_for_tail(alpha)
    least = math.ceil(LEAST_MS / bar_ms)
    top = min(longest, sum(decisions) // needed)
    for horizon in range(top, least - 1, -1):
        if sum((count - 1) // horizon for count in decisions) >= needed:
            return horizon
    return None


def judged_tail(
    backtests: Sequence[Backtest], *, gamma: float, alpha: float, longest: int
) -> tuple[int, TailCheck] | None:
    r"""Return the longest horizon that can be judged, and the tail there; None without one.

    For each window the outcome is a distribution, the rewards of its bars plus g^h times each
    predicted quantile at its end, and the bracket of `checks.tail_check` is its mean over it:

    .. math::
        \hat c_w = v_w + \frac1\alpha \sum_j p_j \min\Big( \sum_{k<h} g^k r_{t+k}
        + g^h \theta_j(t + h) - v_w,\; 0 \Big)

    Windows begin eight times in a horizon. Those of one moment (seeds, symbols) are averaged, and
    the interval is that of a circular block bootstrap over time with blocks of four horizons.

    Args:
        backtests: folds and seeds with critics that predict distributions.
        gamma: discount of one bar.
        alpha: share of worst outcomes.
        longest: bars that the horizon must stay below.
    """
    levels = levels_of(backtests)
    if levels.size == 0:
        return None
    folds = {int(backtest.ts[0]): len(backtest.ts) - 1 for backtest in backtests}
    bar_ms = backtests[0].interval.milliseconds
    horizon = judged_horizon(list(folds.values()), alpha=alpha, bar_ms=bar_ms, longest=longest - 1)
    if horizon is None:
        return None
    parts = [
        part for backtest in backtests for part in _parts(backtest, levels, gamma, horizon, alpha)
    ]
    starts, forecast, realised = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return horizon, _stated(starts, forecast, realised, folds, horizon, alpha)


def _parts(
    backtest: Backtest, levels: Array, gamma: float, horizon: int, alpha: float
) -> list[tuple[Array, Array, Array]]:
    """Return start, predicted CVaR and realised bracket of every window, account by account."""
    predicted = backtest.distribution
    if predicted is None:
        return []
    rewards, stopped = rewards_of(backtest), backtest.flags["stopped"]
    starts = window_starts(len(rewards) - 1, horizon)
    sums = discounted(rewards, starts, gamma=gamma, horizon=horizon)
    weights = cell_weights(levels)
    mass = None if weights is None else torch.from_numpy(weights)
    share = np.full(levels.size, 1.0 / levels.size) if weights is None else weights
    parts = []
    for column in range(len(backtest.symbols)):
        usable = np.asarray(np.isfinite(predicted[:, column]).all(-1))
        kept = usable[starts] & usable[starts + horizon] & ~stopped[starts, column]
        rows = starts[kept]
        if not rows.size:
            continue
        now, later = (
            np.sort(quantiles_of(backtest, predicted[places, column], levels), axis=1)
            for places in (rows, rows + horizon)
        )
        ended = stopped[rows + horizon, column]  # a stop ends the sum
        outcome = sums[kept, column][:, None] + np.where(
            ended[:, None], 0.0, gamma**horizon * later
        )
        predicted_now = torch.from_numpy(now)
        level = risk.value_at_risk(predicted_now, alpha=alpha, weight=mass).numpy()
        below = np.minimum(outcome - level[:, None], 0.0) @ share
        forecast = risk.cvar(predicted_now, alpha=alpha, estimator="dirac", weight=mass).numpy()
        first = backtest.ts[rows] // backtest.interval.milliseconds
        parts.append((first, forecast, level + below / alpha))
    return parts


def _stated(
    starts: Array,
    forecast: Array,
    realised: Array,
    folds: dict[int, int],
    horizon: int,
    alpha: float,
) -> TailCheck:
    needed = needed_for_tail(alpha)
    windows = sum((count - 1) // horizon for count in folds.values())
    moments, place = np.unique(starts, return_inverse=True)
    size = np.bincount(place)
    generator = Generators(0).numpy("calibration.tail")
    block = BLOCK_HORIZONS * min(WINDOWS_PER_HORIZON, horizon)

    def stated(values: Array) -> Statement:
        series = np.bincount(place, values) / size
        low, high = block_mean_interval(series, block=block, generator=generator)
        return Statement(float(series.mean()), low, high, needed, windows, UNIT)

    if not moments.size:
        none = Statement(None, needed=needed, found=0, unit=UNIT)
        return TailCheck(alpha, none, none, none)
    mean = Statement(float(forecast.mean()), needed=needed, found=windows, unit=UNIT)
    return TailCheck(alpha, mean, stated(realised), stated(realised - forecast))
