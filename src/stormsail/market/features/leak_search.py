"""Search for look-ahead on several histories, so that a leak in few rows shows in one of them.

A leak may wait for an hour of the week, a date, a price level or a long history. Every row of
these is tested (see `leak_rows`):

- random bars of three symbols with gaps;
- one long random history, row by row beside its pieces;
- short histories on clocks of all years from 2009 to 2036, each at another part of the year and of
  the week, with prices from 1e-8 to 1e9 and volumes over the same range;
- the user's own bars, if given: whatever a leak waits for, what it does to them is seen. Then the
  short histories are parts of them, too.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from stormsail.market.features.feature_set import FeatureSet
from stormsail.market.features.leak_conditions import Rows, condition_of, rows_of
from stormsail.market.features.leak_rows import CUTS, ROW_TAMPERS, RowCheck, check_rows
from stormsail.market.features.leaks import (
    TAMPERS,
    Leak,
    LeakReport,
    bound_features,
    check_leaks,
    draw_cuts,
)
from stormsail.market.features.registry import BoundFeature, Feature
from stormsail.market.features.sample import sample_bars
from stormsail.market.features.tensors import BarTensors
from stormsail.market.interval import Interval

SYMBOLS = 3
LONG = 131_072
"""Bars of the long history: fifteen years of hours, a quarter of a year of minutes."""
WHOLE_CUTS = 20
"""Rows at which a whole history is cut."""
YEARS = range(2009, 2037)
OWN = "your bars"

_CONSEQUENCES = ("window",)
"""Kinds that a look-ahead entails, too; named after it."""
_LONG_CUTS = 512
_LOOKBACKS = 3
_BOTH_WAYS = ("rise", "fall")
_CONFIRMED = 8
"""Rows whose difference from a piece is looked into at the full length."""
_CELLS = 4_000_000_000
"""Numbers of a column that are computed at most for a feature on the user's bars."""
_WEEK_MS, _DAY_MS = 604_800_000, 86_400_000
_DAYS_A_CLOCK = 13  # 28 clocks go once through the year
_LEAST_EXPONENT, _EXPONENTS = -8.0, 17.0
_SCALES = {
    "price": ("open", "high", "low", "close", "quote_volume", "taker_buy_quote"),
    "volume": ("volume", "trades", "taker_buy_base", "quote_volume", "taker_buy_quote"),
}


class History(NamedTuple):
    """Bars on which features are tested."""

    name: str
    bars: BarTensors
    whole_cuts: int
    """Rows at which the whole is cut."""
    tampers: tuple[str, ...] = ROW_TAMPERS
    piece_cuts: int = CUTS
    lookbacks: int | None = None
    """Every row is tested of this many lookbacks of a feature and 256 bars more; None for all."""

    def rows_for(self, lookback: int) -> BarTensors:
        """Return the newest bars, as many as a feature is tested on."""
        if self.lookbacks is None:
            return self.bars
        first = len(self.bars) - self.lookbacks * lookback - 2 * CUTS
        return self.bars.rows(max(first, 0), len(self.bars))


def search_leaks(
    target: Feature | BoundFeature | FeatureSet,
    *,
    interval: Interval,
    generator: torch.Generator,
    bars: BarTensors | None = None,
) -> LeakReport:
    """Test every row of features on several histories; report which know the future, and when.

    Args:
        target: one feature with its default parameters, a bound one, or a set.
        interval: length of a bar.
        generator: of random bars and changes.
        bars: the user's own.

    Raises:
        RangeError: if the user's bars are fewer than the lookback.
    """
    search = _Search(list(bound_features(target)))
    for history in histories(search.bound, interval, generator, bars):
        search.run(history, generator)
    return search.report()


def histories(
    features: list[BoundFeature],
    interval: Interval,
    generator: torch.Generator,
    own: BarTensors | None,
) -> Iterator[History]:
    """Yield the histories, the user's own first."""
    lookback = max(bound.lookback for bound in features)
    draw = partial(sample_bars, interval=interval, generator=generator)
    if own is not None:
        yield History(OWN, own, WHOLE_CUTS)
    rows = _LOOKBACKS * lookback + 2 * CUTS
    yield History("random bars", draw(rows=rows, symbols=SYMBOLS), WHOLE_CUTS, lookbacks=_LOOKBACKS)
    short = lookback + 2 * CUTS
    for index, year in enumerate(YEARS):
        part = draw(rows=short, symbols=SYMBOLS)
        if own is not None and len(own) >= short:
            first = int(torch.randint(0, len(own) - short + 1, (), generator=generator))
            part = own.rows(first, first + short)
        name = f"a clock of {year}, prices and volumes scaled"
        clocked = _scaled(_on_clock(part, index, year), index)
        yield History(name, clocked, 0, tampers=_BOTH_WAYS, lookbacks=1)
    long = draw(rows=LONG, symbols=1)
    yield History(f"{LONG} random bars", long, 0, tampers=(), piece_cuts=_LONG_CUTS)


def _on_clock(bars: BarTensors, index: int, year: int) -> BarTensors:
    """Return bars whose time begins in another year, at another part of it and of the week."""
    length = bars.interval.milliseconds
    begin = int(np.datetime64(f"{year}-01-01", "ms").astype(np.int64))
    begin += index * _DAYS_A_CLOCK * _DAY_MS + index * 2 * CUTS * length % _WEEK_MS
    begin -= (begin - int(bars.ts[0])) % length  # on the same grid
    return replace(bars, ts=bars.ts - bars.ts[0] + begin)


def _scaled(bars: BarTensors, index: int) -> BarTensors:
    """Return bars with prices and volumes of other sizes: low, middle and high ones each time."""
    count = len(YEARS)
    symbols = torch.arange(bars.symbols)
    place = {
        "price": (index + count * (symbols % SYMBOLS)) / (SYMBOLS * count),
        "volume": ((5 * index + 3) % count + count * ((symbols + 1) % SYMBOLS)) / (SYMBOLS * count),
    }
    columns = dict(bars.columns)
    for kind, names in _SCALES.items():
        base = columns["close" if kind == "price" else "volume"]
        usual = torch.where(base > 0.0, base, torch.nan).nanmedian(0).values
        target = 10.0 ** (_LEAST_EXPONENT + _EXPONENTS * place[kind].to(base.dtype))
        factor = torch.where(usual.isfinite(), target / usual, 1.0)
        for name in names:
            if name in columns:
                columns[name] = columns[name] * factor
    return replace(bars, columns=columns)


class _Search:
    """Results of all features on all histories so far."""

    def __init__(self, bound: list[BoundFeature]) -> None:
        self.bound = bound
        self.leaks: dict[tuple[str, str], Leak] = {}
        """Of each feature and kind the first; `check_leaks` and `check_rows` find many."""
        self.roundings: dict[tuple[str, str], Leak] = {}
        self.ahead: dict[str, list[Rows]] = {one.label: [] for one in bound}
        self.apart: dict[str, list[Rows]] = {one.label: [] for one in bound}
        self.unfit: set[str] = set()
        """Features that fail, write into their input, or mix symbols: no copies beside them."""
        self.cuts: list[int] = []
        self.comparisons = 0

    def run(self, history: History, generator: torch.Generator) -> None:
        bars = history.bars
        least = max(one.lookback for one in self.bound) - 1
        if history.whole_cuts:
            cuts = draw_cuts(bars, count=history.whole_cuts, least=least, generator=generator)
            for one in self.bound:
                self._take(check_leaks(one, bars, cuts=cuts, generator=generator), history.name)
            self.cuts += cuts
        for one in self.bound:
            if one.label not in self.unfit:
                self._check_rows(one, history, generator)

    def _check_rows(self, one: BoundFeature, history: History, generator: torch.Generator) -> None:
        bars = history.rows_for(one.lookback)
        cells = len(bars) * bars.symbols * (one.lookback + 2 * CUTS) * len(history.tampers)
        try:
            result = check_rows(
                one,
                bars,
                generator=generator,
                tampers=history.tampers,
                cuts=history.piece_cuts,
                every=1 + cells // _CELLS,
            )
        except Exception as error:  # noqa: BLE001  a user's function may raise anything
            note = f"whole history: {type(error).__name__}: {error}"
            leak = Leak(one.label, "error", len(bars) - 1, 0, torch.nan, note)
            self._take(LeakReport((one.label,), (), 1, (leak,)), history.name)
            return
        found = result.leaks + self._confirmed(one, result, bars, generator)
        self.comparisons += result.comparisons
        report = LeakReport((one.label,), (), 0, tuple(found), tuple(result.roundings))
        self._take(report, history.name)
        length = min(one.lookback + 2 * history.piece_cuts, len(bars))
        self.ahead[one.label].append(rows_of(bars, result.tested, result.ahead, length=length))
        whole = torch.arange(len(bars)) >= one.lookback - 1
        self.apart[one.label].append(rows_of(bars, whole, result.apart, length=len(bars)))

    def _confirmed(
        self, one: BoundFeature, result: RowCheck, bars: BarTensors, generator: torch.Generator
    ) -> list[Leak]:
        """Return what changing the future does to rows that differ between whole and piece."""
        rows = result.apart.any(1)[: len(bars) - 1].nonzero().flatten()
        if not len(rows):
            return []
        chosen = rows[torch.linspace(0, len(rows) - 1, min(_CONFIRMED, len(rows))).long()].tolist()
        report = check_leaks(one, bars, cuts=chosen, generator=generator)
        self.comparisons += report.comparisons
        return [leak for leak in report.leaks if leak.kind in TAMPERS]

    def _take(self, report: LeakReport, history: str) -> None:
        self.comparisons += report.comparisons
        for leak in report.leaks:
            self.leaks.setdefault((leak.feature, leak.kind), replace(leak, history=history))
            if leak.kind in ("error", "mutation", "symbol", "repeat"):
                self.unfit.add(leak.feature)
        for leak in report.roundings:
            self.roundings.setdefault((leak.feature, leak.kind), replace(leak, history=history))

    def report(self) -> LeakReport:
        return LeakReport(
            tuple(one.label for one in self.bound),
            tuple(self.cuts),
            self.comparisons,
            tuple(sorted(self.leaks.values(), key=lambda leak: leak.kind in _CONSEQUENCES)),
            tuple(self.roundings.values()),
            dict(self._conditions()),
        )

    def _conditions(self) -> Iterator[tuple[str, str]]:
        """Yield what leaking rows have in common; of pieces, or if none leaks, of whole ones."""
        for label, ahead in self.ahead.items():
            apart = self.apart[label]
            if any(part.leaks.any() for part in ahead):
                yield label, condition_of(ahead)
            elif any(part.leaks.any() for part in apart):
                yield label, condition_of([*ahead, *apart])
