"""A small store of synthetic bars for tests of `stormsail bench limits`, and jobs on it."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from stormsail.bench.risk.limits import Job
from stormsail.market.bars import Bars
from stormsail.market.interval import Interval
from stormsail.market.resample import resample
from stormsail.market.store import Store
from stormsail.market.synthetic import generate

HOUR_MS = 3_600_000
START_MS = 1_698_796_800_000  # 2023-11-01 00:00 UTC
TRAIN_BARS, JUDGED_BARS = 61 * 24, 30 * 24  # November and December, then January up to the 30th
MISSING_ROW = TRAIN_BARS + 2 * 24 + 1  # of BBB: the bar on which a day from 2024-01-03 is bought
FREE = (
    "task.market.costs.taker_fee=0.0",
    "task.market.costs.half_spread=0.0",
)
FOUR_HOURS = 'task.data.interval="4h"'
"""Six bars a day, so that every replay of a day is a quarter as long."""
TINY = (
    'task.market.features=[{name="log_return"}]',
    "ppo.n_steps=48",
    "ppo.n_envs=8",
    "ppo.batch_size=8",
    "network.lstm_hidden_size=8",
    "risk.cvar_min_samples=8",
    "risk.cvar_min_tail_samples=1",
    "risk.cvar_window=64",
)


def write_store(folder: Path, *, seed: int = 0) -> Path:
    """Write bars of two symbols, of one and of four hours; one of the second's is missing."""
    world = generate(
        "garch_jump",
        symbols=("AAA/USDT", "BBB/USDT"),
        bars=TRAIN_BARS + JUDGED_BARS,
        interval=Interval.parse("1h"),
        seed=seed,
        start_ms=START_MS,
    )
    store = Store(folder)
    for bars in world.bars:
        keep = np.ones(len(bars), dtype=bool)
        keep[MISSING_ROW] = bars.symbol != "BBB/USDT"
        stored = Bars(bars.symbol, bars.interval, bars.table.filter(pa.array(keep)))
        store.write(stored)
        store.write(resample(stored, Interval.parse("4h")))
    return folder


def job(store: Path, **changes: object) -> Job:
    """Return agents of one seed on that store, of next to no size; `changes` are fields."""
    fields = {
        "seed": 3, "steps": 768, "store": str(store), "symbols": (), "horizon": "day",
        "limit": -0.03, "changes": (), "train_end": "2024-01-01", **changes,
    }  # fmt: skip
    end = datetime.fromisoformat(fields["train_end"]).replace(tzinfo=UTC)
    extra = tuple(fields["changes"])
    return Job(**{**fields, "train_end": end, "changes": (*TINY, *extra)})
