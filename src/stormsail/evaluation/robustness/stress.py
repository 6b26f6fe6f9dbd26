"""Stress tests of an agent: crashes, wider spreads, late orders, bad data.

Every scenario is a whole backtest in which the agent sees what happens and decides anew.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from stormsail.core.errors import RangeError
from stormsail.core.files.documents import JsonValue
from stormsail.core.generators import Generators
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.engine.result import Array, Backtest
from stormsail.evaluation.engine.run import BacktestRequest, backtest, run_batch
from stormsail.evaluation.stats.metrics import key_figures
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
    """Return a backtest for each stress scenario, by name.

    `spread x2`, `spread x5`: a wider half spread. `orders 1 bar late`: every decision fills one bar
    later. `bars lost` and `prices stale`: one bar in ten does not reach the agent, or the one
    before is shown again; its orders meet the true market. `bars missing`: one bar in ten was
    never there: no price, no volume, no trade. `crash 1` to `crash 3`: the worst weeks of the
    span, each begun with a flat account and a memory burnt in.
    """
    requests = stress_requests(agent, panel, backtest(agent, panel, config))
    return by_name(requests, run_batch(list(requests.values())))


def stress_requests(
    agent: Agent, panel: Panel, usual: Backtest
) -> dict[tuple[str, ...], BacktestRequest]:
    """Return what `stress` trades, by the names of its backtests: one for each of its costs.

    `usual` is the agent's backtest where nothing goes wrong.
    """
    fixed = usual.config.during(usual.span)
    costs = usual.market.costs
    wider = [costs.replace(half_spread=min(costs.half_spread * by, 0.99)) for by in SPREADS]
    names = tuple(f"spread x{by:g}" for by in SPREADS)
    requests = {names: BacktestRequest(agent, panel, fixed, tuple(wider))}
    late = fixed.replace(delay_bars=fixed.delay_bars + 1)
    requests["orders 1 bar late",] = BacktestRequest(agent, panel, late)
    lost, stale = Degrade(drop_prob=FAULT), Degrade(stale_prob=FAULT)
    requests["bars lost",] = BacktestRequest(agent, panel, fixed.replace(degrade=lost.model_dump()))
    requests["prices stale",] = BacktestRequest(
        agent, panel, fixed.replace(degrade=stale.model_dump())
    )
    holes = with_holes(panel, chance=FAULT, seed=fixed.seed)
    requests["bars missing",] = BacktestRequest(agent, holes, fixed)
    for number, span in enumerate(_crashes(panel, usual), start=1):
        requests[f"crash {number}",] = BacktestRequest(agent, panel, fixed.during(span))
    return requests


def by_name(
    scenarios: Iterable[tuple[str, ...]], results: Sequence[Sequence[Backtest]]
) -> dict[str, Backtest]:
    """Return the results of `stress_requests` by the names of their scenarios."""
    return {
        name: result
        for names, own in zip(scenarios, results, strict=True)
        for name, result in zip(names, own, strict=True)
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
    """Return first and last row of the windows with the largest drawdowns, largest first.

    A drawdown is measured at its lowest row, from the highest of the `bars` rows before it; the
    window is those rows, cut at the first row. Windows do not overlap; where nothing falls there
    are none.

    Args:
        worth: of a holding, greater than 0, [T].
        bars: length of a window.
        count: most windows that are returned.
    """
    padded = np.concatenate((np.full(bars, -np.inf), worth))
    peak = np.lib.stride_tricks.sliding_window_view(padded, bars + 1).max(1)
    drawdown = 1.0 - worth / peak
    windows: list[tuple[int, int]] = []
    while len(windows) < count and drawdown.max() > 0.0:
        last = int(drawdown.argmax())
        first = max(last - bars, 0)
        if all(last < taken[0] or first > taken[1] for taken in windows):
            windows.append((first, last))
        drawdown[last] = 0.0
    return windows


def figures_document(results: Mapping[str, Backtest]) -> dict[str, JsonValue]:
    """Return the key figures of several backtests as JSON, by name."""
    return {
        name: key_figures(
            result.metrics,
            result.ts,
            result.equity,
            trades=len(result.trades),
            order_hash=result.order_hash,
        )
        for name, result in results.items()
    }
