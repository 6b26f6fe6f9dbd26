"""Look-ahead test of one feature at every row of a history.

A leak may be in few rows only: at one hour of the week, above some price, in long histories. So
each row t is tested by itself, in two steps that together cost about lookback + 256 rows for each.

1. The history is computed in pieces that hold the lookback and some 256 rows more. Every row must
   have the value that it has in the whole history. What reads further ahead than a piece reaches,
   counts rows, or looks at the length of the history, differs here.
2. In each piece, copies are laid side by side like symbols, one for each row t, in which everything
   after t is changed. Row t, and all before it, must stay as they are. What reads fewer rows ahead
   than a piece reaches differs here.

A value that passes both is the value of a computation that nothing after its row could change.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.core.clock import iso
from stormsail.market.bars import PRICES
from stormsail.market.features.leaks import Column, Leak, column_range, difference, summed
from stormsail.market.features.registry import BoundFeature
from stormsail.market.features.tensors import BarTensors

ROW_TAMPERS = ("rise", "fall", "noise", "nan")
"""What is done to every bar after a row.

`rise` and `fall` move every price, the shape of every bar and every other column one way, so that
of a sign, a comparison or an empty bar that is read ahead, one of the two shows the other side.
"""

CUTS = 128
"""Rows that a piece is cut at; as many follow them."""

_CELLS = 80_000
"""Numbers of a column that are computed at once: they stay in the processor's cache."""

_RISE = {"open": 2.0, "high": 1000.0, "low": 1.0, "close": 900.0}
_FALL = {"open": 0.5, "high": 1.0, "low": 0.001, "close": 0.0011}
_OTHER = 1000.0


class Piece(NamedTuple):
    """Rows [start, stop) of a history, cut at the rows [first, last)."""

    start: int
    first: int
    last: int
    stop: int


@dataclass
class RowCheck:
    """What was found in the rows of one feature on one history."""

    tested: Tensor
    """Rows that were cut, bool [T]."""
    ahead: Tensor
    """Where a change after the row shows, bool [T, S]."""
    apart: Tensor
    """Where the whole history gives another value than a piece of it, bool [T, S]."""
    leaks: list[Leak] = field(default_factory=list)
    """Of each kind the largest."""
    roundings: list[Leak] = field(default_factory=list)
    comparisons: int = 0


def pieces(rows: int, lookback: int, *, cuts: int = CUTS) -> Iterator[Piece]:
    """Yield the pieces of a history: each row with a full window and a future is cut in one."""
    for first in range(lookback - 1, rows - 1, cuts):
        last = min(first + cuts, rows - 1)
        yield Piece(first - lookback + 1, first, last, min(last + cuts, rows))


def check_rows(
    bound: BoundFeature,
    bars: BarTensors,
    *,
    generator: torch.Generator,
    tampers: tuple[str, ...] = ROW_TAMPERS,
    cuts: int = CUTS,
    every: int = 1,
) -> RowCheck:
    """Test every row of a feature that does not fail, writes into nothing and mixes no symbols.

    Args:
        bound: the feature.
        bars: history.
        generator: of the noise.
        tampers: what is done to the bars after each row; nothing for the first step alone.
        cuts: rows cut in a piece.
        every: cut in every so many pieces only, where a history is long; all are compared.
    """
    return _Scan(bound, bars, generator).run(tampers, cuts, every)


class _Scan:
    def __init__(self, bound: BoundFeature, bars: BarTensors, generator: torch.Generator) -> None:
        self.bound, self.bars, self.generator = bound, bars, generator
        self.names = bound.feature.columns or tuple(bars.columns)[:1]
        self.whole = bound.column(bars, 0, len(bars))
        self.spread = column_range(self.whole)
        none = torch.zeros_like(self.whole[1])
        self.result = RowCheck(none[:, 0].clone(), none, none.clone())
        self.largest: dict[tuple[str, bool], Leak] = {}

    def run(self, tampers: tuple[str, ...], cuts: int, every: int) -> RowCheck:
        for index, piece in enumerate(pieces(len(self.bars), self.bound.lookback, cuts=cuts)):
            part = self.bars.rows(piece.start, piece.stop)
            alone = self._guarded("window", piece, part)
            if alone is None:
                continue
            self._compare_with_whole(piece, alone)
            if index % every == 0:
                self.result.tested[piece.first : piece.last] = bool(tampers)
                for kind in tampers:
                    self._cut(piece, part, alone, kind)
        large = [(leak, is_leak) for (_, is_leak), leak in self.largest.items()]
        self.result.leaks += [leak for leak, is_leak in large if is_leak]
        self.result.roundings += [leak for leak, is_leak in large if not is_leak]
        return self.result

    def _guarded(self, kind: str, piece: Piece, part: BarTensors) -> Column | None:
        """Return the column of a piece, or None after writing down that the function failed."""
        try:
            return self.bound.column(part, 0, len(part))
        except Exception as error:  # noqa: BLE001  a user's function may raise anything
            note = f"{kind}: {type(error).__name__}: {error}"
            row = piece.first
            leak = Leak(self.bound.label, "error", row, row, torch.nan, note, self._time(row))
            self.largest.setdefault(("error", True), leak)
            return None

    def _compare_with_whole(self, piece: Piece, alone: Column) -> None:
        skipped = piece.first - piece.start
        got = alone[0][skipped:], alone[1][skipped:]
        expected = tuple(x[piece.first : piece.stop] for x in self.whole)
        growth = summed(len(self.bars))
        differs, large = difference(got, (expected[0], expected[1]), self.spread, growth)
        self.result.comparisons += 1
        self.result.apart[piece.first : piece.stop] |= large
        size = (got[0] - expected[0]).abs()
        note = f"{piece.stop - piece.start} bars, lookback {self.bound.lookback}"
        for mask, is_leak in ((large, True), (differs & ~large, False)):
            if bool(mask.any()):
                row = piece.first + int(torch.where(mask, size, -1.0).amax(1).argmax())
                self._keep("window", row, row, float(size[mask].max()), is_leak, note)

    def _cut(self, piece: Piece, part: BarTensors, alone: Column, kind: str) -> None:
        """Compare copies of a piece, each changed after another row."""
        changed = _changed(part, kind, self.generator)
        at_once = max(1, _CELLS // (len(part) * part.symbols))
        for first in range(piece.first, piece.last, at_once):
            cuts = torch.arange(first, min(first + at_once, piece.last)) - piece.start
            copies = _side_by_side(part, changed, cuts, self.names)
            column = self._guarded(kind, piece, copies)
            if column is None:
                return
            self.result.comparisons += len(cuts)
            self._compare_copies(piece, alone, column, cuts, kind)

    def _compare_copies(
        self, piece: Piece, alone: Column, column: Column, cuts: Tensor, kind: str
    ) -> None:
        shape = (len(alone[0]), len(cuts), alone[0].shape[1])
        got = column[0].reshape(shape), column[1].reshape(shape)
        expected = alone[0][:, None].expand(shape), alone[1][:, None].expand(shape)
        past = torch.arange(shape[0])[:, None] <= cuts
        differs, large = difference(got, expected, self.spread)
        differs, large = differs & past[..., None], large & past[..., None]
        if not bool(differs.any()):
            return
        self.result.ahead[piece.start : piece.stop] |= large.any(1)
        size = (got[0] - expected[0]).abs()
        for mask, is_leak in ((large, True), (differs & ~large, False)):
            if bool(mask.any()):
                place = int(torch.where(mask, size, -1.0).flatten().argmax())
                row, rest = divmod(place, shape[1] * shape[2])
                cut = int(cuts[rest // shape[2]])
                amount = float(size[mask].max())
                start = piece.start
                self._keep(kind, start + cut, start + row, amount, is_leak, "")

    def _keep(self, kind: str, cut: int, row: int, size: float, is_leak: bool, note: str) -> None:  # noqa: FBT001
        """Keep the largest difference of each kind; one of validity alone is infinite."""
        amount = size if size > 0.0 or not is_leak else torch.inf
        leak = Leak(self.bound.label, kind, cut, row, amount, note, self._time(row))
        before = self.largest.get((kind, is_leak))
        if before is None or before.size < amount:
            self.largest[kind, is_leak] = leak

    def _time(self, row: int) -> str:
        return iso(int(self.bars.ts[row]))


def _changed(bars: BarTensors, kind: str, generator: torch.Generator) -> BarTensors:
    """Return bars of which each is another one; open times are no secret and stay."""
    columns = {}
    some = next(iter(bars.columns.values()))
    size = torch.empty_like(some).uniform_(1.0, 2.0, generator=generator)
    for name, column in bars.columns.items():
        if kind == "nan":
            columns[name] = torch.full_like(column, torch.nan)
        elif kind == "noise":
            noise = torch.empty_like(column).normal_(generator=generator)
            columns[name] = column * noise.exp()
        elif name in PRICES:
            columns[name] = column * (_RISE[name] * size if kind == "rise" else _FALL[name] / size)
        elif kind == "rise":
            columns[name] = column.nan_to_num().abs() * _OTHER * size + 1.0
        else:
            columns[name] = torch.zeros_like(column)
    if columns.keys() >= set(PRICES):  # nothing below the body of a rise, or above that of a fall
        if kind == "rise":
            columns["low"] = torch.minimum(columns["open"], columns["close"])
        elif kind == "fall":
            columns["high"] = torch.maximum(columns["open"], columns["close"])
    return replace(bars, columns=columns)


def _side_by_side(
    bars: BarTensors, changed: BarTensors, cuts: Tensor, names: Sequence[str]
) -> BarTensors:
    """Return copies of some columns as further symbols, each changed after one row."""
    count, shape = len(cuts), (len(bars), len(cuts) * bars.symbols)
    after = (torch.arange(len(bars))[:, None] > cuts)[..., None]
    columns = {
        name: torch.where(after, changed[name][:, None], bars[name][:, None]).reshape(shape)
        for name in names
    }
    listed = None if bars.listed is None else bars.listed.repeat(1, count)
    return replace(bars, columns=columns, listed=listed)
