"""`stormsail bench wicks`: wicks planted in stored bars, and flags on the bars as they are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stormsail.bench.verdicts import Verdict
from stormsail.core.generators import Generators
from stormsail.market.bars import Bars
from stormsail.market.checks.wicks import suspicious_rows
from stormsail.market.store import Store

FOUND = 0.99
"""Share of planted wicks that must be found."""

BARS_PER_FLAG = 20_000
"""Bars as they are on which there may be one flag."""

_APART = 64  # bars between two planted wicks: each shall be alone, as a wrong price is


@dataclass(frozen=True)
class Row:
    """One symbol: flags on its bars as they are, and how many planted wicks were found."""

    symbol: str
    interval: str
    bars: int
    flags: int
    planted: int
    found: int
    factor: float


def rows(store: Store, *, factors: Sequence[float], planted: int, first_seed: int) -> Iterator[Row]:
    """Yield a row for each symbol of a store and each factor.

    Args:
        store: bars that were not used to choose the thresholds.
        factors: by which single highs are multiplied and single lows divided.
        planted: wicks a symbol and factor, half of them highs.
        first_seed: of the places; each symbol has its own.
    """
    for seed, (symbol, interval) in enumerate(store.contents(), start=first_seed):
        bars = store.read(symbol, interval)
        flags = len(suspicious_rows(bars))
        for factor in factors:
            generator = Generators(seed).numpy(f"bench.wicks.{factor}")
            places = noticed = 0
            for name, change in (("high", factor), ("low", 1.0 / factor)):
                at = _places(len(bars), planted // 2, generator)
                places += len(at)
                noticed += int(
                    np.isin(at, suspicious_rows(_with_wicks(bars, name, at, change))).sum()
                )
            yield Row(symbol, str(interval), len(bars), flags, places, noticed, factor)


def _places(count: int, wanted: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return bars that lie apart from one another."""
    blocks = generator.permutation(max(count // _APART, 1))[:wanted]
    within = generator.integers(0, min(_APART // 2, count), len(blocks))
    return np.sort(blocks * _APART + within)


def _with_wicks(bars: Bars, name: str, at: NDArray[np.int64], change: float) -> Bars:
    values = bars.column(name).copy()
    values[at] *= change
    place = bars.table.column_names.index(name)
    return replace(bars, table=bars.table.set_column(place, name, pa.array(values)))


def verdicts(measured: Sequence[Row]) -> list[Verdict]:
    """Return whether enough is found at every factor, and little else is flagged."""
    claims = []
    for factor in sorted({row.factor for row in measured}):
        part = [row for row in measured if row.factor == factor]
        noticed, planted = sum(row.found for row in part), sum(row.planted for row in part)
        share = noticed / planted if planted else 0.0
        claims.append(
            Verdict(
                f"wicks of {factor:g} times are found in {FOUND:.0%}",
                f"{noticed} of {planted}, {share:.2%}",
                share >= FOUND,
            )
        )
    once = {(row.symbol, row.interval): row for row in measured}.values()
    bars, flags = sum(row.bars for row in once), sum(row.flags for row in once)
    claims.append(
        Verdict(
            f"at most one flag in {BARS_PER_FLAG:,} bars as they are",
            f"{flags} in {bars:,}",
            flags * BARS_PER_FLAG <= bars,
        )
    )
    return claims
