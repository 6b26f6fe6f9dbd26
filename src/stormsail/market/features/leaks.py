"""Look-ahead test of features: change the future bars and compare the past values.

A feature is causal when nothing after bar t can change its rows up to t, and it keeps to its
lookback when nothing before t - lookback + 1 can change its row t. Both are compared to the bit. A
difference of at most 1e-9 of the value and of its column's range is rounding: a mean as a
difference of cumulative sums, say, whose last digits depend on where the history begins. It is
reported apart, because no learner can see it; every larger one is a leak.

`check_leaks` cuts at rows that are given; `leak_rows` cuts at every row, and `leak_search` does
that on several histories, so that a leak in few rows is found, too.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from stormsail.core.clock import iso
from stormsail.core.errors import RangeError
from stormsail.market.features.feature_set import FeatureSet
from stormsail.market.features.registry import BoundFeature, Feature
from stormsail.market.features.tensors import BarTensors

TAMPERS = ("noise", "nan", "x1000", "reversed", "deleted")
"""What is done to every bar after the cut; `deleted` is a shorter history."""

KINDS = (*TAMPERS, "window", "repeat", "symbol", "mutation", "error")
"""All checks. `window`: the last bars alone give another row than the whole history. `repeat`: a
second call gives other numbers. `symbol`: a symbol alone gives another column than among others.
`mutation`: the function writes into its input. `error`: it fails."""

ROUNDING = 1e-9
"""Largest difference, relative to a value and to the range of its column, that is rounding."""
_SUMMED = 1024
"""Bars up to which that holds for two histories that begin at different rows. Beyond, it grows with
the length: so does the rounding of a running sum, which is where such a difference comes from."""

_LARGE = 1000.0
_ALL = slice(None)
_BITS = {torch.float64: torch.int64, torch.float32: torch.int32}

Column = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Leak:
    """A feature value that depends on bars it must not read."""

    feature: str
    kind: str
    cut: int
    """Last row whose bars were left alone."""
    row: int
    """First row whose feature differs."""
    size: float
    """Largest difference; infinite where only validity differs, NaN where the function failed."""
    note: str = ""
    time: str = ""
    """When the bar of that row opens."""
    history: str = ""
    """On which bars it was found, where there were several."""

    def __str__(self) -> str:
        if self.kind == "error":
            return f"{self.feature}: error: {self.note}"
        text = f"{self.feature}: {self.kind} after row {self.cut} changes row {self.row}"
        text += f" by {self.size:.3g}" + (f" at {self.time}" if self.time else "")
        text += f" on {self.history}" if self.history else ""
        return text + (f" ({self.note})" if self.note else "")


@dataclass(frozen=True)
class LeakReport:
    """Result of the look-ahead test: comparisons made, and leaks."""

    features: tuple[str, ...]
    cuts: tuple[int, ...]
    comparisons: int
    leaks: tuple[Leak, ...]
    roundings: tuple[Leak, ...] = ()
    """Differences of no more than rounding; no leaks."""
    conditions: Mapping[str, str] = field(default_factory=dict)
    """What the rows that leak have in common, by feature; of a search."""

    @property
    def passed(self) -> bool:
        """Whether nothing differed by more than rounding."""
        return not self.leaks

    def of(self, feature: str) -> tuple[Leak, ...]:
        """Return the leaks of one feature."""
        return tuple(leak for leak in self.leaks if leak.feature == feature)


def check_leaks(
    target: Feature | BoundFeature | FeatureSet,
    bars: BarTensors,
    *,
    cuts: Sequence[int],
    generator: torch.Generator,
) -> LeakReport:
    """Change the future and the distant past of each cut; report which features changed.

    Args:
        target: one feature with its default parameters, a bound one, or a set.
        bars: history to tamper with; `sample_bars` makes one that shows what real bars may hide.
        cuts: rows after which bars are changed; `draw_cuts` chooses them.
        generator: of the noise and of the windows' lengths.

    Raises:
        RangeError: if a cut leaves nothing after it.
    """
    for cut in cuts:
        if not 0 <= cut < len(bars) - 1:
            raise RangeError(
                wrong=f"a cut must leave bars after it: at least 0 and below {len(bars) - 1}",
                found=str(cut),
                remedy="Use `draw_cuts`, or pass a longer history.",
            )
    checks = [_FeatureCheck(bound, bars) for bound in bound_features(target)]
    for cut in cuts:
        for kind in TAMPERS:
            tampered = _tampered(bars, cut, kind, generator)
            for check in checks:
                check.compare_past(tampered, cut, kind)
        for check in checks:
            check.compare_windows(cut, generator)
    for check in checks:
        check.compare_again()
        check.compare_symbols()
    return LeakReport(
        tuple(check.bound.label for check in checks),
        tuple(cuts),
        sum(check.comparisons for check in checks),
        tuple(leak for check in checks for leak in check.leaks),
        tuple(leak for check in checks for leak in check.roundings),
    )


def draw_cuts(bars: BarTensors, *, count: int, least: int, generator: torch.Generator) -> list[int]:
    """Return rows to cut at, from `least` on; every second one beside a bar without volume.

    Filling across a gap only shows at a cut inside that gap.
    """
    last = len(bars) - 2
    if least > last:
        raise RangeError(
            wrong=f"the history must hold more than {least + 1} bars",
            found=str(len(bars)),
            remedy="Pass a history longer than the lookback.",
        )
    volume = bars.columns.get("volume")
    quiet: list[int] = []
    if volume is not None:
        empty = (volume[least : last + 1] == 0.0).any(1).nonzero().flatten() + least
        quiet = empty[torch.randperm(len(empty), generator=generator)].tolist()
    spread = torch.randint(least, last + 1, (count,), generator=generator).tolist()
    return [
        quiet[index // 2] if index % 2 and index // 2 < len(quiet) else spread[index]
        for index in range(count)
    ]


class _FeatureCheck:
    """The check of one feature: its rows for the whole history, comparisons and leaks."""

    def __init__(self, bound: BoundFeature, bars: BarTensors) -> None:
        self.bound = bound
        self.bars = bars
        self.leaks: list[Leak] = []
        self.roundings: list[Leak] = []
        self.comparisons = 0
        self.whole: Column | None = None
        """None after a failure or mutation: another call would fail or change the bars again."""
        inputs = {**bars.columns, "ts": bars.ts}
        before = {name: tensor.clone() for name, tensor in inputs.items()}
        try:
            self.whole = bound.column(bars, 0, len(bars))
        except Exception as error:  # noqa: BLE001  a user's function may raise anything
            self._failed("whole history", len(bars) - 1, 0, error)
        for name, tensor in inputs.items():
            if not bool((_bits(tensor) == _bits(before[name])).all()):
                tensor.copy_(before[name])  # the other features need the bars unchanged
                self.whole = None
                self._add_leak("mutation", len(bars) - 1, 0, math.nan, f"it wrote into `{name}`")

    def compare_past(self, tampered: BarTensors, cut: int, kind: str) -> None:
        """Compare rows up to the cut."""
        self._compare(
            kind, cut, 0, lambda: _rows(self.bound.column(tampered, 0, len(tampered)), 0, cut + 1)
        )

    def compare_windows(self, cut: int, generator: torch.Generator) -> None:
        """Compare the row at the cut with that of the last bars alone."""
        earliest = cut - self.bound.lookback + 1
        if earliest < 0:
            return
        longer = int(torch.randint(0, earliest + 1, (), generator=generator))
        for first in sorted({earliest, longer}):
            window = self.bars.rows(first, cut + 1)
            note = f"{len(window)} bars, lookback {self.bound.lookback}"
            self._compare("window", cut, cut, partial(self._last_row, window), note=note)

    def _last_row(self, window: BarTensors) -> Column:
        rows = len(window)
        return _rows(self.bound.column(window, 0, rows), rows - 1, rows)

    def compare_again(self) -> None:
        """Compare a second call on the same bars."""
        last = len(self.bars) - 1
        self._compare("repeat", last, 0, lambda: self.bound.column(self.bars, 0, last + 1))

    def compare_symbols(self) -> None:
        """Compare each symbol alone with its column among the others."""
        last = len(self.bars) - 1
        for index in range(self.bars.symbols if self.bars.symbols > 1 else 0):
            rows = partial(self.bound.column, self.bars.symbol(index), 0, last + 1)
            among = slice(index, index + 1)
            self._compare("symbol", last, 0, rows, note=f"symbol {index} alone", among=among)

    def _compare(
        self,
        kind: str,
        cut: int,
        start: int,
        rows: Callable[[], Column],
        *,
        note: str = "",
        among: slice = _ALL,
    ) -> None:
        if self.whole is None:
            return
        self.comparisons += 1
        try:
            values, valid = rows()
        except Exception as error:  # noqa: BLE001  a user's function may raise anything
            if kind == "symbol":  # needing the others to run at all is depending on them
                self._add_leak(
                    kind, cut, start, math.nan, f"{note}: {type(error).__name__}: {error}"
                )
            else:
                self._failed(kind, cut, start, error)
            return
        expected, expected_valid = (x[:, among] for x in _rows(self.whole, start, cut + 1))
        spread = column_range(self.whole)[among]
        growth = summed(len(self.bars)) if kind == "window" else 1.0
        differs, large = difference((values, valid), (expected, expected_valid), spread, growth)
        if bool(differs.any()):
            first = int((large if bool(large.any()) else differs).any(1).nonzero()[0])
            size = float((values - expected).abs().max())
            into = self.leaks if bool(large.any()) else self.roundings
            infinite = bool((valid != expected_valid).any()) and size == 0.0
            self._add_leak(kind, cut, start + first, math.inf if infinite else size, note, into)

    def _failed(self, when: str, cut: int, row: int, error: Exception) -> None:
        self._add_leak("error", cut, row, math.nan, f"{when}: {type(error).__name__}: {error}")

    def _add_leak(
        self,
        kind: str,
        cut: int,
        row: int,
        size: float,
        note: str,
        into: list[Leak] | None = None,
    ) -> None:
        time = iso(int(self.bars.ts[row]))
        leak = Leak(self.bound.label, kind, cut, row, size, note, time)
        (self.leaks if into is None else into).append(leak)


def bound_features(target: Feature | BoundFeature | FeatureSet) -> Iterator[BoundFeature]:
    """Return the features that are meant, with their parameters."""
    if isinstance(target, FeatureSet):
        yield from target.bound
    else:
        yield target.bind() if isinstance(target, Feature) else target


def column_range(column: Column) -> Tensor:
    """Return highest less lowest valid value of each symbol, [S]; 0 where there is none."""
    values, valid = column
    if not len(values):
        return values.new_zeros(values.shape[1])
    top = torch.where(valid, values, -torch.inf).amax(0)
    bottom = torch.where(valid, values, torch.inf).amin(0)
    return torch.where(valid.any(0), top - bottom, 0.0)


def summed(rows: int) -> float:
    """Return how many times the rounding of a short history a long one may show."""
    return max(1.0, rows / _SUMMED)


def difference(
    got: Column, expected: Column, spread: Tensor, growth: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return where columns differ in any bit, and where by more than rounding.

    Args:
        got: values and validity, [..., S].
        expected: the same.
        spread: `column_range` of the column, [S].
        growth: of rounding with the length of the history; see `summed`.
    """
    (values, valid), (wanted, wanted_valid) = got, expected
    moved = valid != wanted_valid
    differs = moved | (_bits(values) != _bits(wanted))
    size = torch.minimum(torch.maximum(values.abs(), wanted.abs()), spread)
    return differs, differs & (moved | ((values - wanted).abs() > growth * ROUNDING * size))


def _rows(column: Column, start: int, stop: int) -> Column:
    return column[0][start:stop], column[1][start:stop]


def _bits(values: Tensor) -> Tensor:
    """Return the numbers as integers: -0 is not 0, and a NaN equals itself."""
    return values.contiguous().view(_BITS.get(values.dtype, values.dtype))


def _tampered(bars: BarTensors, cut: int, kind: str, generator: torch.Generator) -> BarTensors:
    """Return the bars with everything after the cut changed; open times are no secret and stay."""
    if kind == "deleted":
        return bars.rows(0, cut + 1)
    columns = {}
    for name, column in bars.columns.items():
        future = column[cut + 1 :]
        if kind == "noise":
            noise = torch.empty_like(future).normal_(generator=generator)
            changed = future * noise.exp()
        elif kind == "nan":
            changed = torch.full_like(future, torch.nan)
        elif kind == "x1000":
            changed = future * _LARGE
        else:
            changed = future.flip(0)
        columns[name] = torch.cat([column[: cut + 1], changed])
    return replace(bars, columns=columns)
