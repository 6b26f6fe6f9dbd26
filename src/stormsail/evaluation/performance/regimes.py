"""Performance by regime of the market: volatility, trend, funding, each by what was known before.

The market is the mean of its symbols. A bar's regime is that of the 64 bars before it, so that no
label reads the return it is set beside:

- `volatility`: calm, usual or stormy, as calibration tells them (`calibration.predictions`);
- `trend`: the mean of the last 64 moves over its standard error: falling below -1, rising above 1,
  else sideways;
- `funding`: the sign of what a long position of 1 would have paid over those bars.
"""

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.calibration.predictions import REGIME_BARS, REGIMES, regimes_of
from stormsail.evaluation.stats import figures
from stormsail.evaluation.stats.figures import Array
from stormsail.evaluation.stats.statement import MINIMUM_BARS, Statement, state
from stormsail.market.panel import Panel
from stormsail.market.simulator.config import MarketConfig
from stormsail.market.simulator.tape import paid_rates

Labels = NDArray[np.str_]

KINDS = {
    "volatility": REGIMES,
    "trend": ("falling", "sideways", "rising"),
    "funding": ("shorts pay", "none", "longs pay"),
}
"""Regimes by kind, in order."""


@dataclass(frozen=True)
class RegimeFigures:
    """What an account did while the market was in a regime."""

    bars: int
    total_return: float
    """Compounded over those bars."""
    mean_return: float
    """Of one bar."""
    sharpe: Statement
    """Annualised."""

    def document(self) -> dict[str, JsonValue]:
        """Return them as JSON."""
        return {
            "bars": self.bars,
            "total_return": self.total_return,
            "mean_return": self.mean_return,
            "sharpe": self.sharpe.document(),
        }


def regime_labels(panel: Panel, market: MarketConfig, ts: NDArray[np.int64]) -> dict[str, Labels]:
    """Return the regime of each bar by kind, [N]; empty where too little was known.

    Args:
        panel: bars of the span and before it.
        market: says which funding is paid.
        ts: close of the bar before each, which is where it is decided on, [N].
    """
    rows = np.searchsorted(panel.ts.cpu().numpy() + panel.interval.milliseconds, ts)
    close = panel.close.cpu().double().numpy()
    listed = panel.listed.cpu().numpy()
    moves = _means(np.diff(np.log(np.where(listed, close, np.nan)), axis=0))
    rates = _means(np.where(listed, paid_rates(panel, market).cpu().double().numpy(), np.nan))
    return {
        "volatility": regimes_of(moves, rows),
        "trend": _trends(moves, rows),
        "funding": _funding(rates, rows),
    }


def _means(columns: Array) -> Array:
    """Return the mean over symbols that are there, 0 where none is, [T]."""
    known = np.isfinite(columns)
    count = np.maximum(known.sum(1), 1)
    return np.asarray(np.where(known, columns, 0.0).sum(1) / count)


def _trends(moves: Array, rows: NDArray[np.intp]) -> Labels:
    """Return the trend known at each row: move i ends at row i + 1, so those before i count."""
    labels = np.full(rows.size, "", dtype="<U8")
    enough = rows >= REGIME_BARS
    if moves.size >= REGIME_BARS and enough.any():
        spells = sliding_window_view(moves, REGIME_BARS)
        mean, deviation = spells.mean(1), spells.std(1, ddof=1)
        score = np.divide(
            mean * np.sqrt(REGIME_BARS), deviation, out=np.zeros_like(mean), where=deviation > 0.0
        )[rows[enough] - REGIME_BARS]
        names = np.array(KINDS["trend"])
        labels[enough] = names[1 + (score > 1.0).astype(int) - (score < -1.0).astype(int)]
    return labels


def _funding(rates: Array, rows: NDArray[np.intp]) -> Labels:
    """Return who has paid whom over the last bars up to each row."""
    labels = np.full(rows.size, "", dtype="<U10")
    enough = rows >= REGIME_BARS - 1
    if rates.size >= REGIME_BARS and enough.any():
        paid = sliding_window_view(rates, REGIME_BARS).sum(1)[rows[enough] - REGIME_BARS + 1]
        labels[enough] = np.array(KINDS["funding"])[1 + np.sign(paid).astype(int)]
    return labels


def by_regime(
    returns: Array, labels: dict[str, Labels], *, per_year: float
) -> dict[str, dict[str, RegimeFigures]]:
    """Return the figures of each regime that occurred, by kind and name.

    Args:
        returns: [N] simple returns.
        labels: of the same bars, by kind.
        per_year: bars in a year.
    """
    return {
        kind: {
            name: _figures(returns[labels[kind] == name], per_year)
            for name in names
            if (labels[kind] == name).any()
        }
        for kind, names in KINDS.items()
    }


def _figures(returns: Array, per_year: float) -> RegimeFigures:
    return RegimeFigures(
        bars=returns.size,
        total_return=figures.total_return(returns),
        mean_return=float(returns.mean()),
        sharpe=state(
            lambda: figures.sharpe(returns, per_year=per_year),
            needed=MINIMUM_BARS,
            found=returns.size,
            why="all returns are equal",
        ),
    )
