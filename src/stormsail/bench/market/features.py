"""`stormsail bench features`: the default features beside TA-Lib, pandas and numpy."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from stormsail.bench.market.feature_peers import Array, Columns, missing, peers
from stormsail.bench.timing import Row, best_milliseconds
from stormsail.core.generators import Generators
from stormsail.market.features import BarTensors, FeatureSet, FeatureSpec, sample_bars
from stormsail.market.features.catalogue import default_specs
from stormsail.market.interval import Interval

INTERVAL = Interval.parse("1h")


@dataclass(frozen=True)
class Total:
    """The whole set at once, and the peers of its columns one after another."""

    columns: int
    seconds: float
    peer_columns: int
    peer_seconds: float
    missing: tuple[str, ...]


def history(rows: int, *, seed: int) -> BarTensors:
    """Return one symbol's bars."""
    generator = Generators(seed).stream("bench.features")
    return sample_bars(rows=rows, symbols=1, interval=INTERVAL, generator=generator)


def rows(bars: BarTensors, *, repeats: int = 1) -> Iterator[tuple[str, Row]]:
    """Yield library and row for each default column that a library offers too."""
    known = peers()
    columns = _columns(bars)
    for spec in default_specs(INTERVAL):
        feature = FeatureSet([spec], interval=INTERVAL)
        name = feature.names[0]
        if name not in known:
            continue
        library, peer = known[name]
        with np.errstate(divide="ignore", invalid="ignore"):  # a bar without volume, a flat window
            started = time.perf_counter()
            expected = peer(columns)
            duration = 1e3 * (time.perf_counter() - started)
        fastest = best_milliseconds(partial(feature.compute, bars), repeats=repeats)
        yield library, Row(name, fastest, duration, _difference(feature, bars, expected))


def total(bars: BarTensors, measured: list[Row], *, repeats: int = 2) -> Total:
    """Return the duration of the whole set beside the sum of its peers."""
    specs: tuple[FeatureSpec, ...] = default_specs(INTERVAL)
    features = FeatureSet(specs, interval=INTERVAL)
    fastest = best_milliseconds(partial(features.compute, bars), repeats=repeats) / 1e3
    peer = sum(row.reference_milliseconds for row in measured) / 1e3
    return Total(len(specs), fastest, len(measured), peer, tuple(missing()))


def _columns(bars: BarTensors) -> Columns:
    columns = {name: column[:, 0].contiguous().numpy() for name, column in bars.columns.items()}
    return {**columns, "ts": (bars.ts + bars.interval.milliseconds).numpy().astype(np.float64)}


def _difference(feature: FeatureSet, bars: BarTensors, expected: Array) -> float:
    """Return the largest difference after the recursions of the peer have forgotten their start."""
    ours = feature.compute(bars)
    after = 2 * feature.lookback
    both = ours.valid[after:, 0, 0].numpy() & np.isfinite(expected[after:])
    return float(np.abs(ours.values[after:, 0, 0].numpy() - expected[after:])[both].max())
