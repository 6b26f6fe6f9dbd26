"""Search for look-ahead on several histories, so that a leak in few rows shows in one of them.

A leak may wait for an hour of the week, a date, a price level, a wild market or a long history.
Every row of these is tested (see `leak_rows`):

- the user's own bars, if given: whatever a leak waits for, what it does to them is seen;
- random bars of three symbols with gaps;
- 105 short histories on other clocks: three in each year from 2007 to 2041, which together meet
  every hour of every day of a leap year, with prices and volumes from 1e-8 to 1e9, funding rates
  from 1e-6 to 0.1 and returns from a tenth to sixteen times as large. They are parts of the user's
  bars, if given and long enough, or random;
- random histories of 512 to 131,072 bars beyond the lookback, beside their pieces.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.market.bars import PRICES
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
from stormsail.market.features.tensors import FUNDING, BarTensors
from stormsail.market.interval import Interval

SYMBOLS = 3
LENGTHS = tuple(512 * 2**power for power in range(9))
"""Bars beyond the lookback; the last are fifteen years of hours, a quarter of a year of minutes."""
WHOLE_CUTS = 20
"""Rows at which a whole history is cut."""
YEARS = range(2007, 2042)
CLOCKS = 3 * len(YEARS)
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
_STEP_MS = 251 * 3_600_000
"""Between the parts of a year: 35 go once through it, and through all hours of the day."""
_THIRD = 11
"""Parts of a year between its three clocks: so every day of the month meets every weekday."""
_MULTIPLIERS = {"price": 38, "volume": 67, "funding": 16, "move": 23}
"""Sizes of a clock are spread by these, which share no divisor with the number of clocks."""
_EXPONENTS = {"price": (-8.0, 9.0), "volume": (-8.0, 9.0), "funding": (-6.0, -1.0)}
"""Typical sizes as powers of ten, lowest and highest."""
_MOVES = (-1.0, 1.2)
"""Factors of log returns as powers of ten."""
_OF_VOLUME = ("volume", "trades", "taker_buy_base", "quote_volume", "taker_buy_quote")


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
        yield History(OWN, own, WHOLE_CUTS, tampers=_BOTH_WAYS)
    rows = _LOOKBACKS * lookback + 2 * CUTS
    yield History("random bars", draw(rows=rows, symbols=SYMBOLS), WHOLE_CUTS, lookbacks=_LOOKBACKS)
    short = lookback + 2 * CUTS
    for index in range(CLOCKS):
        part = draw(rows=short, symbols=1)
        if own is not None and len(own) >= short:
            first = int(torch.randint(0, len(own) - short + 1, (), generator=generator))
            part = own.rows(first, first + short).symbol(index % own.symbols)
        clocked = _scaled(_on_clock(part, index), index)
        name = f"a clock of {_year(index)}, prices and volumes scaled"
        yield History(name, clocked, 0, tampers=_BOTH_WAYS, piece_cuts=2 * CUTS, lookbacks=1)
    long = draw(rows=lookback + LENGTHS[-1], symbols=1)
    for length in LENGTHS:
        bars = long.rows(LENGTHS[-1] - length, len(long))
        cuts = min(_LONG_CUTS, length // 8)
        yield History(f"{len(bars)} random bars", bars, 0, tampers=(), piece_cuts=cuts)


def _year(index: int) -> int:
    return YEARS[index % len(YEARS)]


def _on_clock(bars: BarTensors, index: int) -> BarTensors:
    """Return bars at another time, such that those which are cut lie in one part of a year."""
    length = bars.interval.milliseconds
    part = (index + _THIRD * (index // len(YEARS))) % len(YEARS)
    begin = int(datetime(_year(index), 1, 1, tzinfo=UTC).timestamp()) * 1000 + part * _STEP_MS
    begin -= (len(bars) - 2 * CUTS - 1) * length  # the lookback lies before it
    begin -= (begin - int(bars.ts[0])) % length  # on the same grid
    return replace(bars, ts=bars.ts - bars.ts[0] + begin)


def _scaled(bars: BarTensors, index: int) -> BarTensors:
    """Return bars with prices, returns, volumes and funding rates of other sizes."""
    share = {kind: by * index % CLOCKS / (CLOCKS - 1) for kind, by in _MULTIPLIERS.items()}
    target = {
        kind: 10.0 ** (low + share[kind] * (high - low)) for kind, (low, high) in _EXPONENTS.items()
    }
    columns = dict(bars.columns)
    close, power = columns["close"], 10.0 ** (_MOVES[0] + share["move"] * (_MOVES[1] - _MOVES[0]))
    for name in PRICES:  # a power keeps low <= open, close <= high
        columns[name] = target["price"] * (columns[name] / _usual(close)) ** power
    for name in ("quote_volume", "taker_buy_quote"):
        if name in columns:
            columns[name] = columns[name] * (columns["close"] / close)
    for kind, names in (("volume", _OF_VOLUME), ("funding", (FUNDING,))):
        factor = target[kind] / _usual(columns[kind]) if kind in columns else 1.0
        columns |= {name: columns[name] * factor for name in names if name in columns}
    return replace(bars, columns=columns)


def _usual(column: Tensor) -> Tensor:
    """Return the median size of what is known and not 0, [S]; 1 where nothing is."""
    size = torch.where(column != 0.0, column.abs(), torch.nan).nanmedian(0).values
    return torch.where(size.isfinite(), size, 1.0)


class _Search:
    """Results of all features on all histories so far."""

    def __init__(self, bound: list[BoundFeature]) -> None:
        self.bound = bound
        self.leaks: dict[tuple[str, str], Leak] = {}
        """Of each feature and kind the first; `check_leaks` and `check_rows` find many."""
        self.roundings: dict[tuple[str, str], Leak] = {}
        self.ahead: dict[str, list[Rows]] = {feature.label: [] for feature in bound}
        self.apart: dict[str, list[Rows]] = {feature.label: [] for feature in bound}
        self.unfit: set[str] = set()
        """Features that fail, write into their input, or mix symbols: no copies beside them."""
        self.cuts: list[int] = []
        self.comparisons = 0

    def run(self, history: History, generator: torch.Generator) -> None:
        bars = history.bars
        least = max(feature.lookback for feature in self.bound) - 1
        if history.whole_cuts:
            cuts = draw_cuts(bars, count=history.whole_cuts, least=least, generator=generator)
            for feature in self.bound:
                self._take(check_leaks(feature, bars, cuts=cuts, generator=generator), history.name)
            self.cuts += cuts
        for feature in self.bound:
            if feature.label not in self.unfit:
                self._check_rows(feature, history, generator)

    def _check_rows(
        self, feature: BoundFeature, history: History, generator: torch.Generator
    ) -> None:
        bars = history.rows_for(feature.lookback)
        cells = len(bars) * bars.symbols * (feature.lookback + 2 * CUTS) * len(history.tampers)
        try:
            result = check_rows(
                feature,
                bars,
                generator=generator,
                tampers=history.tampers,
                cuts=history.piece_cuts,
                every=1 + cells // _CELLS,
            )
        except Exception as error:  # noqa: BLE001  a user's function may raise anything
            note = f"whole history: {type(error).__name__}: {error}"
            leak = Leak(feature.label, "error", len(bars) - 1, 0, torch.nan, note)
            self._take(LeakReport((feature.label,), (), 1, (leak,)), history.name)
            return
        leaks = result.leaks + self._confirmed(feature, result, bars, generator)
        self.comparisons += result.comparisons
        report = LeakReport((feature.label,), (), 0, tuple(leaks), tuple(result.roundings))
        self._take(report, history.name)
        length = min(feature.lookback + 2 * history.piece_cuts, len(bars))
        self.ahead[feature.label].append(rows_of(bars, result.tested, result.ahead, length=length))
        whole = torch.arange(len(bars)) >= feature.lookback - 1
        self.apart[feature.label].append(rows_of(bars, whole, result.apart, length=len(bars)))

    def _confirmed(
        self, feature: BoundFeature, result: RowCheck, bars: BarTensors, generator: torch.Generator
    ) -> list[Leak]:
        """Return what a changed future does to rows that differ from a piece, if not yet known."""
        rows = result.apart.any(1)[: len(bars) - 1].nonzero().flatten()
        known = {kind for label, kind in self.leaks if label == feature.label}
        if not len(rows) or known & {*TAMPERS}:
            return []
        chosen = rows[torch.linspace(0, len(rows) - 1, min(_CONFIRMED, len(rows))).long()].tolist()
        report = check_leaks(feature, bars, cuts=chosen, generator=generator)
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
            tuple(feature.label for feature in self.bound),
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
