"""The simulator beside a ledger written from docs/life_of_a_bar.md alone, with everything on."""

import math
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import torch

from oracles.life_of_a_bar import Ledger
from simulator_lab import START_MS, settings, simulator, wild_panel
from stormsail.functional.risk_gate import Reason

ROWS, SYMBOLS = 80, 3
NUMBERS = (
    "equity", "cash", "quantity", "entry_price", "price", "traded", "fee_total", "slippage",
    "funding", "turnover", "reward",
)  # fmt: skip
FLAGS = ("liquidated", "blocked", "delisted", "terminated", "truncated")
TOLERANCE = 1e-9


def drawn_panel(rng, seed):
    """Return wild bars: one symbol is listed late, one ends early, some rates and marks unknown."""
    panel = wild_panel(seed, rows=ROWS, symbols=SYMBOLS, quoted=bool(seed % 2))
    late, end = int(rng.integers(1, 6)), int(rng.integers(20, 60))
    panel.listed[:late, 1] = panel.tradable[:late, 1] = False
    panel.volume[:late, 1] = 0.0
    for column in panel.optional.values():
        column[:late, 1] = 0.0
    panel.volume[end:, 2] = 0.0
    if rng.random() < 0.5:
        panel.tradable[end:, 2] = False
        for name in ("open", "high", "low", "close"):
            getattr(panel, name)[end:, 2] = panel.close[end - 1, 2]
    missing = (panel.funding != 0.0) & torch.from_numpy(rng.random(panel.shape) < 0.4)
    panel.funding[missing] = 0.0
    basis = torch.from_numpy(np.exp(rng.normal(0.0, 0.01, (*panel.shape, 1))))
    mark = torch.stack((panel.open, panel.high, panel.low), -1) * basis
    known = torch.from_numpy(rng.random(panel.shape) < 0.7)[..., None]
    return replace(
        panel,
        settlements=missing.long(),
        rates_missing=missing.long(),
        mark=torch.where(known, mark, torch.nan),
    )


def pick(rng, *choices):
    return choices[rng.integers(len(choices))]


def drawn_config(rng):
    leverage = float(pick(rng, 1.0, 3.0, 8.0))
    impact = pick(rng, 0.0, 0.01, 0.05)
    start = datetime.fromtimestamp(START_MS / 1000, UTC)
    lots = {"lot": pick(rng, 0.001, 0.1, 0.3), "tick": pick(rng, 0.01, 0.05, 0.5)}
    changes = {
        "episode_bars": ROWS - 10,
        "min_rebalance": pick(rng, 0.0, 0.05, 0.2),
        "ruin_penalty": pick(rng, 0.0, 0.7),
        "reward_clip": pick(rng, None, 0.03),
        "funding_missing": pick(rng, "zero", 0.002, -0.001),
        "trade_without_volume": bool(rng.random() < 0.2),
        "delisting.silent_days": pick(rng, 0.5, 1.0, 2.0),
        "delisting.loss": pick(rng, 0.0, 0.05, 0.4),
        "costs.taker_fee": pick(rng, 0.0005, 0.002),
        "costs.half_spread": pick(rng, 0.0, 0.0002, 0.001),
        "costs.impact": impact,
        "costs.impact_window": int(rng.integers(1, 6)),
        "margin.maintenance": pick(rng, 0.005, 0.03, 0.08),
        "margin.liquidation_fee": pick(rng, 0.0, 0.005, 0.01),
        "filters.min_notional": pick(rng, 0.0, 150.0, 600.0),
        # without impact, tick and lot, whether an order of nearly nothing is one is a last bit
        "filters.tick": 0.0 if impact else 0.01,
        "symbol_filters": {"AAA/USDT:USDT": {**lots, "min_notional": 300.0}},
        "limits.max_position": pick(rng, None, 9_000.0, 25_000.0),
        "limits.max_turnover": pick(rng, None, 3.0, 12.0),
        "limits.max_drawdown": pick(rng, None, 0.1, 0.3),
        "limits.max_daily_loss": pick(rng, None, 0.03, 0.1),
        "limits.min_equity": pick(rng, 0.0, 5_000.0),
        "stops.equity_floor": pick(rng, 0.001, 0.05),
        "stops.drawdown": pick(rng, None, 0.6),
        "no_trade.around_funding_minutes": int(pick(rng, 0, 60)),
        "no_trade.daily": pick(rng, (), ("22:00-01:00", "05:00-06:00")),
        "no_trade.ranges": pick(
            rng, (), ((start + timedelta(hours=30), start + timedelta(hours=33)),)
        ),
    }
    return settings(leverage=leverage, **changes)


def drawn_weights(rng, top):
    last, weights = np.zeros(SYMBOLS), np.empty((ROWS - 10, SYMBOLS))
    for row in range(len(weights)):
        kind, fresh = rng.random(SYMBOLS), rng.uniform(-top, top, SYMBOLS)
        last = np.select(
            [kind < 0.3, kind < 0.6, kind < 0.75, kind < 0.85],
            [fresh, last, np.clip(last + rng.normal(0.0, 0.03, SYMBOLS), -top, top), 0.0 * last],
            np.sign(fresh) * top,
        )
        odd = rng.random(SYMBOLS)
        weights[row] = np.select([odd < 0.04, odd < 0.06], [np.nan, 2.0 * top + last], last)
    return weights


def rows_of(panel, column):
    """Return a symbol's rows as plain numbers."""
    quoted = panel.optional.get("quote_volume")
    notional = panel.close * panel.volume if quoted is None else quoted
    rows = []
    for n in range(len(panel.ts)):
        mark = panel.mark[n, column].tolist()
        rows.append(
            {
                "ts": int(panel.ts[n]),
                "listed": bool(panel.listed[n, column]),
                "bar": bool(panel.tradable[n, column]),
                "rate": float(panel.funding[n, column]),
                "missing": int(panel.rates_missing[n, column]),
                "notional": float(notional[n, column]),
                "mark": None if math.isnan(mark[0]) else tuple(mark),
                **{
                    name: float(getattr(panel, name)[n, column])
                    for name in ("open", "high", "low", "close", "volume")
                },
            }
        )
    return rows


def simulated(panel, config, weights, first, scale):
    sim = simulator(panel, config, batch=SYMBOLS)
    state, _ = sim.place(torch.arange(SYMBOLS), torch.full((SYMBOLS,), first))
    state = state._replace(
        fee=state.fee * scale[0],
        half_spread=state.half_spread * scale[1],
        impact=state.impact * scale[2],
    )
    generator, shown = torch.Generator().manual_seed(1), []
    for weight in torch.from_numpy(weights):
        state, step = sim.transition(state, weight, sim.draw(generator))
        numbers = {k: v.tolist() for k, v in step.info._asdict().items() if v.ndim == 1}
        numbers |= {"terminated": step.terminated.tolist(), "truncated": step.truncated.tolist()}
        shown.append({**numbers, "reward": step.reward.tolist()})
    return shown


def one_stream(seed):
    rng = np.random.default_rng([seed, 11])
    panel, config = drawn_panel(rng, seed), drawn_config(rng)
    weights = drawn_weights(rng, config.weight_range[1])
    first, scale = 6, [pick(rng, 1.0, 0.5, 1.7) for _ in range(3)]
    shown = simulated(panel, config, weights, first, scale)
    seen = Counter()
    for env, symbol in enumerate(panel.symbols):
        ledger = Ledger(
            rows_of(panel, env),
            config.model_dump(),
            first=first,
            filters=config.filters_of(symbol).model_dump(),
            fee=config.costs.taker_fee * scale[0],
            half_spread=config.costs.half_spread * scale[1],
            impact=config.costs.impact * scale[2],
        )
        for index, request in enumerate(weights[:, env].tolist()):
            told = ledger.step(request)
            got = {name: values[env] for name, values in shown[index].items()}
            place = f"stream {seed}, {symbol}, step {index}"
            size = max(abs(told["equity"]), 1e-3 * config.initial_equity)
            for name in NUMBERS:
                near = pytest.approx(told[name], rel=TOLERANCE, abs=TOLERANCE * size, nan_ok=True)
                assert got[name] == near, (place, name)
            for name in FLAGS:
                assert got[name] == told[name], (place, name)
            assert Reason(got["reason"]).name == told["reason"], place
            seen.update(name for name in FLAGS if told[name])
            seen[told["reason"]] += 1
            seen["fills"] += told["traded"] != 0.0
            seen["closed by a delisting"] += told["delisted"] and told["slippage"] > 0.0
            seen["steps"] += 1
            if told["terminated"] or told["truncated"]:
                break
    return seen


def test_a_ledger_written_from_the_page_agrees_at_every_bar():
    seen = sum((one_stream(seed) for seed in range(60)), Counter())
    assert seen["steps"] > 5_000
    wanted = {*FLAGS, "fills", "closed by a delisting", *(reason.name for reason in Reason)}
    assert sorted(name for name in wanted - {"LEVERAGE"} if not seen[name]) == [], seen


@pytest.mark.campaign
def test_a_thousand_streams_agree_with_the_page():
    assert sum((one_stream(seed) for seed in range(1_000)), Counter())["steps"] > 80_000
