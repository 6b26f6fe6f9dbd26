"""The same agent where things go wrong: crashes, wider spreads, late orders, bad data.

Every scenario is a whole backtest in which the agent sees what happens and decides anew.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from stormsail.core.errors import RangeError
from stormsail.core.files.documents import JsonValue
from stormsail.core.generators import Generators
from stormsail.evaluation.engine.result import Array
from stormsail.evaluation.engine.run import (
    Backtest,
    BacktestConfig,
    Decides,
    backtest,
    trade_all,
)
from stormsail.market.bars import OPTIONAL, PRICES
from stormsail.market.panel import Panel
from stormsail.market.simulator.config import Degrade
from stormsail.market.splits import Span
from stormsail.modules.agent import Agent

SPREADS = (2.0, 5.0)
"""Factors on the half spread."""

FAULT = 0.1
"""Chance that a bar is lost, repeated, or was never there."""

CRASHES = 3
CRASH_DAYS = 7


def stress(agent: Agent, panel: Panel, config: BacktestConfig) -> dict[str, Backtest]:
    """Return a backtest for each thing that may go wrong, by name.

    `spread x2`, `spread x5`: a wider half spread. `orders 1 bar late`: every decision fills one bar
    later. `bars lost` and `prices stale`: one bar in ten does not reach the agent, or the one
    before is shown again; its orders meet the true market. `bars missing`: one bar in ten was
    never there: no price, no volume, no trade. `crash 1` to `crash 3`: the worst weeks of the
    span, each begun with a flat account and a memory burnt in.

    Args:
        agent: who decides.
        panel: bars of the span and before it.
        config: of the backtest that is stressed.
    """
    asked = stress_passes(agent, panel, backtest(agent, panel, config))
    return by_name(asked, trade_all(list(asked.values())))


def stress_passes(agent: Agent, panel: Panel, usual: Backtest) -> dict[tuple[str, ...], Decides]:
    """Return what `stress` trades, by the names of its backtests: one for each of its costs.

    Args:
        agent: who decides.
        panel: bars of the span and before it.
        usual: its backtest where nothing goes wrong.
    """
    fixed = usual.config.during(usual.span)
    costs = usual.market.costs
    wider = [costs.replace(half_spread=min(costs.half_spread * by, 0.99)) for by in SPREADS]
    names = tuple(f"spread x{by:g}" for by in SPREADS)
    found = {names: Decides(agent, panel, fixed, tuple(wider))}
    late = fixed.replace(delay_bars=fixed.delay_bars + 1)
    found["orders 1 bar late",] = Decides(agent, panel, late)
    lost, stale = Degrade(drop_prob=FAULT), Degrade(stale_prob=FAULT)
    found["bars lost",] = Decides(agent, panel, fixed.replace(degrade=lost.model_dump()))
    found["prices stale",] = Decides(agent, panel, fixed.replace(degrade=stale.model_dump()))
    holes = with_holes(panel, chance=FAULT, seed=fixed.seed)
    found["bars missing",] = Decides(agent, holes, fixed)
    for number, span in enumerate(_crashes(panel, usual), start=1):
        found[f"crash {number}",] = Decides(agent, panel, fixed.during(span))
    return found


def by_name(
    asked: Iterable[tuple[str, ...]], found: Sequence[Sequence[Backtest]]
) -> dict[str, Backtest]:
    """Return what came of `stress_passes` by name."""
    return {
        name: one
        for names, told in zip(asked, found, strict=True)
        for name, one in zip(names, told, strict=True)
    }


def with_holes(panel: Panel, *, chance: float, seed: int) -> Panel:
    """Return a panel in which bars were never there, drawn for each symbol.

    As in a panel of bars with gaps: the last close is repeated, volumes are 0, nothing trades. The
    bar in which a symbol begins stays. Funding settles as before.

    Raises:
        RangeError: if the chance is not in [0, 1).
    """
    if not 0.0 <= chance < 1.0:
        raise RangeError(
            wrong="`chance` must be in [0, 1)", found=f"{chance:g}", remedy="Pass for example 0.1."
        )
    drawn = Generators(seed).numpy("stress.holes").random(panel.shape) < chance
    begun = panel.listed.clone()
    begun[1:] = panel.listed[:-1] & panel.listed[1:]
    begun[0] = False
    gone = torch.from_numpy(drawn) & begun
    row = torch.arange(len(panel.ts))[:, None]
    newest = torch.where(gone, -1, row).cummax(0).values.clamp(min=0)
    carried = panel.close.gather(0, newest)
    prices = {name: torch.where(gone, carried, getattr(panel, name)) for name in PRICES}
    volumes = {name: panel.optional[name] for name in OPTIONAL if name in panel.optional}
    silent = {name: torch.where(gone, 0.0, column) for name, column in volumes.items()}
    return replace(
        panel,
        open=prices["open"],
        high=prices["high"],
        low=prices["low"],
        close=prices["close"],
        volume=torch.where(gone, 0.0, panel.volume),
        tradable=panel.tradable & ~gone,
        optional={**panel.optional, **silent},
    )


def _crashes(panel: Panel, usual: Backtest) -> list[Span]:
    """Return the worst weeks of the span, worst first."""
    bars = max(2, CRASH_DAYS * 86_400_000 // panel.interval.milliseconds)
    ts = panel.ts.cpu().numpy()
    rows = usual.span.rows(ts)
    close = panel.close[rows].double().cpu().numpy()
    worth = (close / close[0]).mean(1)  # buy and hold without costs
    return [
        Span(int(ts[rows.start + first]), int(ts[rows.start + last]) + panel.interval.milliseconds)
        for first, last in crash_windows(worth, bars=bars, count=CRASHES)
    ]


def crash_windows(worth: Array, *, bars: int, count: int) -> list[tuple[int, int]]:
    """Return first and last row of the windows with the deepest falls, deepest first.

    A fall is measured at its lowest row, from the highest of the `bars` rows before it; the window
    is those rows, cut at the first row. Windows do not overlap; rows that never fall make none.

    Args:
        worth: of a holding, greater than 0, [T].
        bars: length of a window.
        count: most windows that are returned.
    """
    padded = np.concatenate((np.full(bars, -np.inf), worth))
    peak = np.lib.stride_tricks.sliding_window_view(padded, bars + 1).max(1)
    fall = 1.0 - worth / peak
    found: list[tuple[int, int]] = []
    while len(found) < count and fall.max() > 0.0:
        last = int(fall.argmax())
        first = max(last - bars, 0)
        if all(last < taken[0] or first > taken[1] for taken in found):
            found.append((first, last))
        fall[last] = 0.0
    return found


def stress_document(found: Mapping[str, Backtest]) -> dict[str, JsonValue]:
    """Return the main figures of each scenario as plain data."""
    return {name: figures(one) for name, one in found.items()}


def figures(result: Backtest) -> dict[str, JsonValue]:
    """Return the figures by which backtests are set side by side."""
    measured = result.metrics.statements()
    shown = ("total_return", "sharpe", "drawdown", "cvar", "turnover", "fees")
    return {
        "start": result.span.start_ms,
        "end": result.span.end_ms,
        "bars": len(result.returns),
        "trades": len(result.trades),
        "final_equity": float(result.equity[-1]),
        "order_hash": result.order_hash,
        **{name: measured[name].value for name in shown},
    }
