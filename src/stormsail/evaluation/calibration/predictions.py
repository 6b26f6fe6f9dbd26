"""Predictions of a critic at each decision of a backtest, beside what the account then returned.

N decisions, S accounts, L levels, W windows of H bars, discount g. Predicted is the distribution of

    r_t + g r_{t+1} + g² r_{t+2} + ...,    r_t = log(equity after bar t / equity before it)

under the agent's own decisions, drawn as in training. An episode that ran out of time did not end
the sum in training, it went on with the critic's own prediction; a stop ended it. So here a window
runs on over the horizons that an agent sees, and returns of an account after a stop do not count.

A backtest has no infinite sum. A window ends after the fewest bars that leave out a tenth of the
weight or less, and what lies behind them is left out and not replaced by the critic's own
prediction, which would be compared with itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from stormsail.core.errors import ConfigError, RangeError, ShapeError
from stormsail.evaluation.calibration.windows import Windows, windows
from stormsail.evaluation.engine.result import Backtest
from stormsail.evaluation.stats.figures import Array
from stormsail.market.panel import Panel

LEFT_OUT = 0.1
"""Share of the discounted weight that may lie beyond a window."""

WINDOWS_PER_HORIZON = 8
"""Windows that begin in the span of one: more of them overlap so far that they add nothing."""

ATOM_LEVELS = 200
"""Levels at which a distribution on atoms is read: ten in a tail of 5 %."""

REGIME_BARS = 64
"""Bars whose moves say how stormy it is."""

REGIME_SPELLS = 64
"""Spells of that length that a spell is ranked among at least."""

REGIMES = ("calm", "usual", "stormy")


@dataclass(frozen=True, eq=False)
class Predictions:
    """Calibration windows of one discount, ordered by time.

    Attributes:
        windows: predicted quantiles and realised sums; quantiles [W, 0] where there is only a mean.
        mean: [W] predicted mean.
        regimes: [W] `calm`, `usual`, `stormy`, or empty where too little was known by then.
        bars: decisions of the backtests, those of one moment counted once.
    """

    windows: Windows
    mean: Array
    regimes: NDArray[np.str_]
    bars: int


def horizon_of(gamma: float) -> int:
    r"""Return the fewest bars beyond which at most `LEFT_OUT` of the weight lies.

    .. math::
        H = \min\{h \ge 1 : \gamma^h \le 0.1\}, \qquad
        \gamma^H = \frac{\sum_{k \ge H} \gamma^k}{\sum_{k \ge 0} \gamma^k}

    Of independent bars the mean of the sum loses the share g^H, its standard deviation only
    1 - sqrt(1 - g^2H), half a per cent. Ours.

    Raises:
        RangeError: if the discount is not in [0, 1): a sum without discount has no horizon.
    """
    if not 0.0 <= gamma < 1.0:
        raise RangeError(
            wrong="`gamma` must be at least 0 and below 1",
            found=repr(gamma),
            remedy="Pass the discount that the critic was trained with.",
        )
    if gamma <= LEFT_OUT:
        return 1
    # The tolerance: a discount whose power is the limit itself must not cost a further bar.
    return math.ceil(math.log(LEFT_OUT) / math.log(gamma) * (1.0 - 1e-12))


def rewards_of(backtest: Backtest) -> Array:
    """Return the reward of each bar in the units of the critic, [N, S]; 0 after a stop.

    Log growth of equity, by the rules of `market.simulator`: both ends at least the floor, less the
    penalty of ruin, clipped where training clipped.
    """
    market = backtest.market
    floor = market.ruin_equity
    before = backtest.sleeves[:-1] + backtest.bars["transfer"]
    after = backtest.sleeves[1:]
    growth = np.log(np.maximum(after, floor) / np.maximum(before, floor))
    growth = np.where(after <= floor, growth - market.ruin_penalty, growth)
    if market.reward_clip is not None:
        growth = np.clip(growth, -market.reward_clip, market.reward_clip)
    rewards: Array = np.where(backtest.flags["stopped"], 0.0, growth)
    return rewards


def window_starts(count: int, horizon: int) -> NDArray[np.int64]:
    """Return the decisions at which windows begin: evenly, and every H-th exactly.

    floor(j H / 8) for j = 0, 1, ..., as long as a window ends with the last bar or before: of
    them, those that share no bar are as many as fit.
    """
    if count < horizon:
        return np.zeros(0, dtype=np.int64)
    last = count - horizon
    marks = np.arange(last * WINDOWS_PER_HORIZON // horizon + 2, dtype=np.int64)
    starts = np.unique(marks * horizon // WINDOWS_PER_HORIZON)
    return starts[starts <= last]


def discounted(rewards: Array, starts: NDArray[np.int64], *, gamma: float, horizon: int) -> Array:
    r"""Return the discounted sum of the rewards of each window, [W] or [W, S].

    .. math::
        G_t = \sum_{k=0}^{H-1} \gamma^k r_{t+k}
    """
    weight = gamma ** np.arange(horizon, dtype=np.float64)
    sums = [weight @ rewards[start : start + horizon] for start in starts.tolist()]
    return np.array(sums, dtype=np.float64).reshape(len(starts), *rewards.shape[1:])


def atom_quantiles(probs: Array, atoms: Array, levels: Array) -> Array:
    """Return quantiles of distributions on ascending atoms, [W, L], mass spread over cells.

    Each atom has a cell. Cells meet half-way between atoms; the outer ones reach as far out as in.
    A target is projected by giving each outcome to its two neighbouring atoms, so the sum of the
    probabilities up to an atom is the mean of the true distribution function between it and the
    next: it belongs to the point half-way, where a cell ends. Read as a staircase, the same
    distribution would be half an atom off. Ours. The CVaR of a normal distribution at 5 % comes out
    right to 0.1 % with atoms a fifth of a deviation apart, and 2.4 % too severe with atoms half a
    deviation apart.

    Args:
        probs: [W, K].
        atoms: [K], at least 2.
        levels: [L] ascending, in (0, 1).
    """
    inner = (atoms[:-1] + atoms[1:]) / 2
    edges = np.concatenate(([2 * atoms[0] - inner[0]], inner, [2 * atoms[-1] - inner[-1]]))
    cumulative = np.cumsum(probs / probs.sum(-1, keepdims=True), axis=-1)
    cumulative[:, -1] = 1.0
    quantiles = np.empty((len(probs), levels.size))
    for row, up_to in enumerate(cumulative):
        cell = np.searchsorted(up_to, levels)  # the first that reaches the level
        below = np.where(cell > 0, up_to[cell - 1], 0.0)
        share = (levels - below) / (up_to[cell] - below)
        quantiles[row] = edges[cell] + share * (edges[cell + 1] - edges[cell])
    return quantiles


def regimes_of(moves: Array, starts: NDArray[np.int64]) -> NDArray[np.str_]:
    """Return how stormy it was at each start, by what was known then, [W].

    The root mean square of the last 64 moves, ranked among all such spells up to that moment, ties
    at their middle: the lowest third is calm, the highest stormy. Nothing later is read, so
    thirds of the whole span need not be equal. Empty where there are fewer than 64 spells.

    Args:
        moves: [N] of one account or symbol, move i over the bar that follows decision i.
        starts: decisions; of decision t the moves before t are known.
    """
    labels = np.full(starts.size, "", dtype="<U6")
    if moves.size < REGIME_BARS:
        return labels
    size = np.sqrt(np.mean(sliding_window_view(moves, REGIME_BARS) ** 2, axis=-1))
    for place, start in enumerate(starts.tolist()):
        seen = size[: max(start - REGIME_BARS + 1, 0)]  # spell i ends before decision i + 64
        if seen.size < REGIME_SPELLS:
            continue
        below, equal = np.count_nonzero(seen < seen[-1]), np.count_nonzero(seen == seen[-1])
        rank = (below + (equal + 1) / 2) / seen.size
        labels[place] = REGIMES[0 if rank <= 1 / 3 else 1 if rank <= 2 / 3 else 2]
    return labels


def closes_of(backtest: Backtest, panel: Panel) -> Array:
    """Return the market's closes at the marks of a backtest, [N + 1, S], for `regimes`.

    Raises:
        ConfigError: if the panel has other symbols or not all of the marks.
    """
    ts = panel.ts.cpu().numpy() + panel.interval.milliseconds
    rows = np.searchsorted(ts, backtest.ts)
    held = rows < ts.size
    if panel.symbols != backtest.symbols or not (held.all() and (ts[rows] == backtest.ts).all()):
        raise _unlike("the panel must be the one that the backtest traded", "other bars or symbols")
    return np.asarray(panel.close.cpu().numpy()[rows], dtype=np.float64)


def predictions_of(
    backtests: Sequence[Backtest], *, gamma: float, closes: Sequence[Array] | None = None
) -> Predictions:
    """Return the calibration windows of all backtests and accounts, ordered by time.

    A window lies in one backtest. Windows of other accounts, seeds or symbols over the same bars
    are windows of their own, and `Windows.independent` counts them once: markets move together.

    Args:
        backtests: passes of agents with critics of one kind, on bars of one length.
        gamma: discount of one bar.
        closes: of the market at the marks of each backtest, [N + 1, S], to tell regimes by; None
            takes the account's own equity, which is calm wherever nothing is held.

    Raises:
        ConfigError: if kinds of critics, their levels or the bars differ.
        ShapeError: if `closes` do not fit.
        RangeError: if the discount is not in [0, 1).
    """
    horizon = horizon_of(gamma)
    _check_alike(backtests)
    levels = levels_of(backtests)
    parts = [
        _part(backtest, levels, gamma, horizon, None if closes is None else closes[number])
        for number, backtest in enumerate(backtests)
    ]
    joined = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
    order = np.argsort(joined[0], kind="stable")
    starts, quantiles, realised, mean, regimes = (column[order] for column in joined)
    known = (
        Windows(quantiles, realised, levels, starts, horizon)
        if levels.size == 0  # a critic that predicts a mean alone
        else windows(quantiles, realised, levels=levels, starts=starts, horizon=horizon)
    )
    marks = {int(ts) for backtest in backtests for ts in backtest.ts[:-1]}
    return Predictions(known, mean, regimes, len(marks))


def _part(
    backtest: Backtest, levels: Array, gamma: float, horizon: int, closes: Array | None
) -> tuple[NDArray[np.int64], Array, Array, Array, NDArray[np.str_]]:
    """Return starts, quantiles, outcomes, means and regimes of one backtest, account by account."""
    predicted, mean = backtest.distribution, backtest.value
    if predicted is None or mean is None:
        raise _unlike("every backtest must hold what a critic predicted", "one without")
    rewards = rewards_of(backtest)
    moves = _moves(rewards, closes)
    starts = window_starts(len(rewards), horizon)
    realised = discounted(rewards, starts, gamma=gamma, horizon=horizon)
    first = backtest.ts[starts] // backtest.interval.milliseconds
    usable = np.isfinite(predicted).all(-1) & np.isfinite(mean) & ~backtest.flags["stopped"]
    accounts = []
    for column in range(len(backtest.symbols)):
        kept = usable[starts, column]
        rows = starts[kept]
        quantiles = quantiles_of(backtest, predicted[rows, column], levels)
        labels = regimes_of(moves[:, column], rows)
        account = (first[kept], quantiles, realised[kept, column], mean[rows, column], labels)
        accounts.append(account)
    joined = tuple(np.concatenate(columns) for columns in zip(*accounts, strict=True))
    return joined[0], joined[1], joined[2], joined[3], joined[4]


def _moves(rewards: Array, closes: Array | None) -> Array:
    if closes is None:
        return rewards
    if closes.shape != (len(rewards) + 1, rewards.shape[1]):
        raise ShapeError(
            wrong=f"`closes` must have the shape [{len(rewards) + 1}, {rewards.shape[1]}]",
            found=str(list(closes.shape)),
            remedy="Pass the close of every symbol at every mark, as `closes_of` returns them.",
        )
    moves: Array = np.diff(np.log(closes), axis=0)
    return moves


def quantiles_of(backtest: Backtest, predicted: Array, levels: Array) -> Array:
    """Return the quantiles of predictions at levels, [W, L]; none of critics of a mean alone."""
    if backtest.distribution_kind == "quantile":
        return predicted
    if backtest.distribution_kind == "categorical" and backtest.distribution_support is not None:
        return atom_quantiles(predicted, backtest.distribution_support, levels)
    return predicted[:, :0]


def levels_of(backtests: Sequence[Backtest]) -> Array:
    """Return the levels at which all distributions are read; none for critics of a mean alone."""
    first = backtests[0]
    if first.distribution_kind == "quantile" and first.distribution_support is not None:
        return first.distribution_support
    count = ATOM_LEVELS if first.distribution_kind == "categorical" else 0
    return (np.arange(count) + 0.5) / max(count, 1)


def _check_alike(backtests: Sequence[Backtest]) -> None:
    def form(backtest: Backtest) -> tuple[str, str, int]:
        width = (
            0
            if backtest.distribution is None or backtest.distribution_kind == "categorical"
            else backtest.distribution.shape[-1]
        )
        return str(backtest.interval), backtest.distribution_kind, width

    seen = sorted({form(backtest) for backtest in backtests})
    if len(seen) != 1:
        raise _unlike(
            "backtests must be on bars of one length, with critics of one kind and width",
            ", ".join(f"{length} {kind} {width}" for length, kind, width in seen) or "none",
        )


def _unlike(wrong: str, found: str) -> ConfigError:
    return ConfigError(
        "config-inconsistent",
        wrong=wrong,
        found=found,
        remedy="Calibrate those that belong together.",
    )
