"""`stormsail bench features`: the default features beside TA-Lib, pandas and numpy."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from stormsail.bench.market.feature_peers import Array, Columns, missing, peers
from stormsail.bench.timing import Row, Spent, best_milliseconds, least, spent
from stormsail.core.generators import Generators
from stormsail.market.features import BarTensors, FeatureSet, FeatureSpec, sample_bars
from stormsail.market.features.catalogue import default_specs
from stormsail.market.interval import Interval

INTERVAL = Interval.parse("1h")


ROUNDS = 5
"""How often the set and its peers take turns."""


@dataclass(frozen=True)
class Total:
    """The whole set at once, and the peers of its columns one after another."""

    columns: int
    seconds: float
    processor_seconds: float
    peer_columns: int
    peer_seconds: float
    peer_processor_seconds: float
    threads: int
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
            expected = peer(columns)
            duration = best_milliseconds(partial(peer, columns), repeats=repeats)
        fastest = best_milliseconds(partial(feature.compute, bars), repeats=repeats)
        yield library, Row(name, fastest, duration, _difference(feature, bars, expected))


def total(bars: BarTensors, *, rounds: int = ROUNDS) -> Total:
    """Return the duration of the whole set beside the sum of its peers.

    They take turns; of the set, and of each peer, the shortest turn counts, after one that does not
    count. Peers run one after another in one thread, as these libraries do; the set runs in as many
    as torch has.
    """
    specs: tuple[FeatureSpec, ...] = default_specs(INTERVAL)
    features = FeatureSet(specs, interval=INTERVAL)
    known, columns = peers(), _columns(bars)
    calls = [partial(known[name][1], columns) for name in features.names if name in known]
    ours: list[Spent] = []
    theirs: list[list[Spent]] = [[] for _ in calls]
    with np.errstate(divide="ignore", invalid="ignore"):
        for _ in range(1 + rounds):
            ours.append(spent(partial(features.compute, bars)))
            for times, call in zip(theirs, calls, strict=True):
                times.append(spent(call))
    own, each = least(ours[1:]), [least(times[1:]) for times in theirs]
    return Total(
        len(specs),
        own.seconds,
        own.processor_seconds,
        len(calls),
        sum(peer.seconds for peer in each),
        sum(peer.processor_seconds for peer in each),
        torch.get_num_threads(),
        tuple(missing()),
    )


def _columns(bars: BarTensors) -> Columns:
    columns = {name: column[:, 0].contiguous().numpy() for name, column in bars.columns.items()}
    return {**columns, "ts": (bars.ts + bars.interval.milliseconds).numpy().astype(np.float64)}


def _difference(feature: FeatureSet, bars: BarTensors, expected: Array) -> float:
    """Return the largest difference after the recursions of the peer have forgotten their start."""
    ours = feature.compute(bars)
    after = 2 * feature.lookback
    both = ours.valid[after:, 0, 0].numpy() & np.isfinite(expected[after:])
    return float(np.abs(ours.values[after:, 0, 0].numpy() - expected[after:])[both].max())
