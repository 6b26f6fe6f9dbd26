"""Replay the weights of a backtest in NautilusTrader, and report how far the ledgers differ."""

from typing import NamedTuple

import numpy as np

from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.crosscheck.nautilus import NautilusRun, run_nautilus
from stormsail.evaluation.engine.result import Backtest
from stormsail.market.panel import Panel


class Difference(NamedTuple):
    """How far two ledgers of the same decisions differ in one symbol."""

    symbol: str
    bars: int
    """Marks that were compared; fewer than there are where a stop ended the other run."""
    equity: float
    """Largest difference in equity, quote currency."""
    equity_share: float
    """The same over the equity of that bar."""
    position: float
    """Largest difference in the position, base currency."""
    fills: int
    """Fills of the other engine."""
    version: str
    """Of NautilusTrader."""

    def document(self) -> dict[str, JsonValue]:
        """Return it as plain data."""
        return dict(self._asdict())


def compare_nautilus(result: Backtest, panel: Panel) -> tuple[Difference, ...]:
    """Trade the weights of a backtest in NautilusTrader, symbol by symbol, and compare every mark.

    Sizes, fills and money are Nautilus's own, from the weights that reached the gate. Where a stop
    ended an account, both are compared up to that bar; where a symbol was delisted, up to its last
    traded one.

    Args:
        result: of a backtest or replay whose accounts were not pooled.
        panel: bars that it was made of.

    Raises:
        ConfigError: if NautilusTrader is not there, or cannot express the rules: impact, no lot or
            tick, limits other than leverage; see `nautilus.run_nautilus`.
        DataError: if prices do not fit it, or an account was liquidated.
    """
    return tuple(
        _difference(result, column, _run(result, column, panel))
        for column in range(len(result.symbols))
    )


def _run(result: Backtest, column: int, panel: Panel) -> NautilusRun:
    ended = result.flags["delisted"][:, column]
    count = int(ended.argmax()) if ended.any() else len(ended)
    part = panel.between(result.span.start_ms, int(result.ts[count]))
    weights = result.weights[:count, column]
    return run_nautilus(part, result.symbols[column], weights, result.market)


def _difference(result: Backtest, column: int, run: NautilusRun) -> Difference:
    count = len(run.equity)
    own = result.sleeves[:count, column]
    other = np.array([float(equity) for equity in run.equity])
    held = np.concatenate(([0.0], result.bars["quantity"][: count - 1, column]))
    position = np.array([float(quantity) for quantity in run.position])
    apart = np.abs(own - other)
    return Difference(
        symbol=result.symbols[column],
        bars=count,
        equity=float(apart.max()),
        equity_share=float((apart / np.abs(own)).max()),
        position=float(np.abs(held - position).max()),
        fills=len(run.fills),
        version=run.version,
    )
