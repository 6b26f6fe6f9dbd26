"""Look-ahead test of features: change the future bars and compare the past values.

A feature is causal when nothing after bar t can change its rows up to t, and it keeps to its
lookback when nothing before t - lookback + 1 can change its row t. Both are demanded to the bit: a
leak through a mean over all history moves a value by a part in a thousand, and no tolerance that
lets rounding pass would see it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

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

    def __str__(self) -> str:
        if self.kind == "error":
            return f"{self.feature}: error: {self.note}"
        text = f"{self.feature}: {self.kind} after row {self.cut} changes row {self.row}"
        return f"{text} by {self.size:.3g}" + (f" ({self.note})" if self.note else "")


@dataclass(frozen=True)
class LeakReport:
    """Result of the look-ahead test: comparisons made, and leaks."""

    features: tuple[str, ...]
    cuts: tuple[int, ...]
    comparisons: int
    leaks: tuple[Leak, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing differed."""
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
    checks = [_FeatureCheck(bound, bars) for bound in _features(target)]
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
            here = slice(index, index + 1)
            alone = replace(
                self.bars,
                columns={name: x[:, here].contiguous() for name, x in self.bars.columns.items()},
                listed=None if self.bars.listed is None else self.bars.listed[:, here],
            )
            rows = partial(self.bound.column, alone, 0, last + 1)
            self._compare("symbol", last, 0, rows, note=f"symbol {index} alone", among=here)

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
        differs = (_bits(values) != _bits(expected)) | (valid != expected_valid)
        if bool(differs.any()):
            row = start + int(differs.any(1).nonzero()[0])
            size = float((values - expected).abs().max())
            self._add_leak(kind, cut, row, size if size > 0.0 else math.inf, note)

    def _failed(self, when: str, cut: int, row: int, error: Exception) -> None:
        self._add_leak("error", cut, row, math.nan, f"{when}: {type(error).__name__}: {error}")

    def _add_leak(self, kind: str, cut: int, row: int, size: float, note: str) -> None:
        self.leaks.append(Leak(self.bound.label, kind, cut, row, size, note))


def _features(target: Feature | BoundFeature | FeatureSet) -> Iterator[BoundFeature]:
    if isinstance(target, FeatureSet):
        yield from target.bound
    else:
        yield target.bind() if isinstance(target, Feature) else target


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
