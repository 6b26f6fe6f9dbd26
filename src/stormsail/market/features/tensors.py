"""`BarTensors`: closed bars as tensors, the input of features."""

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar, cast

import torch
from torch import Tensor

from stormsail.core.errors import DataError, DtypeError, ShapeError
from stormsail.market.bars import PRICES
from stormsail.market.interval import Interval
from stormsail.market.panel import Panel

FUNDING = "funding"
"""Column of the rates that settled since the previous bar opened and up to this bar's open."""


Shared = TypeVar("Shared")
Kept = dict[Hashable, tuple[int, object]]
"""What features of one block have in common: the first row that it was computed from, and it."""


@dataclass(frozen=True, eq=False)  # tensors do not compare to one truth value
class BarTensors:
    """Columns [T, S] of T closed bars of S symbols, with their open times [T].

    Where a symbol has no bar the columns hold what the panel carries: the last close as open, high,
    low and close, and no volume. Rows before a symbol's first bar are not listed; a feature whose
    window reaches one is not valid there, whatever the placeholder.
    """

    ts: Tensor
    interval: Interval
    columns: Mapping[str, Tensor]
    listed: Tensor | None = None
    """Bool [T, S], never false again once true; None where all rows are."""
    reader: str = ""
    """The feature that these columns were picked for; named in a refusal."""
    kept: Kept | None = None
    """What other features have left for this one; None where nothing is shared."""
    first: int = 0
    """Row of the history that these bars begin with."""

    def __post_init__(self) -> None:
        shapes = {name: tuple(column.shape) for name, column in self.columns.items()}
        rows = tuple(self.ts.shape)
        if len(set(shapes.values())) > 1 or any(
            len(shape) != 2 or shape[:1] != rows for shape in shapes.values()
        ):
            raise ShapeError(
                wrong="`ts` must be [T] and every column [T, S]",
                found=f"ts {rows} and "
                + ", ".join(f"{name} {shape}" for name, shape in shapes.items()),
                remedy="Put time first and symbols second; one symbol is a column of its own.",
            )
        for name, column in self.columns.items():
            if not column.is_floating_point():
                raise DtypeError(
                    wrong=f"column `{name}` must hold floating point numbers",
                    found=str(column.dtype),
                    remedy="Convert it with `.double()`.",
                )

    @classmethod
    def of(cls, source: "Panel | BarTensors") -> "BarTensors":
        """Return the columns of a panel; what is bars already is returned as it is."""
        if isinstance(source, BarTensors):
            return source
        columns = {name: getattr(source, name) for name in (*PRICES, "volume")} | dict(
            source.optional
        )
        if bool(source.has_funding.any()):
            # A symbol without rates has none, rather than rates of 0.
            # Before its first rate nothing is known either. A rate of exactly 0 looks like no
            # settlement, so knowledge begins with the first that is not. The end stays as it is:
            # whether the last rate seen was the last of all is only known later.
            seen = (source.funding != 0.0).cumsum(0) > 0
            columns[FUNDING] = torch.where(source.has_funding & seen, source.funding, torch.nan)
        columns = {name: column.contiguous() for name, column in columns.items()}
        return cls(source.ts, source.interval, columns, source.listed)

    def __len__(self) -> int:
        return int(self.ts.shape[0])

    def __getitem__(self, name: str) -> Tensor:
        """Return one column.

        Raises:
            DataError: if it is not here.
        """
        if name not in self.columns:
            reader = f"feature `{self.reader}`" if self.reader else "a feature"
            raise DataError(
                "data-column",
                wrong=f"{reader} must have the column `{name}` that it reads, and declare it",
                found=", ".join(self.columns) or "no column",
                remedy="Import a source that has it and name it in `columns`, or drop the feature.",
            )
        return self.columns[name]

    @property
    def symbols(self) -> int:
        """S, how many symbols there are."""
        return int(next(iter(self.columns.values())).shape[1])

    def rows(self, start: int, stop: int) -> "BarTensors":
        """Return the bars from row `start` up to, but without, row `stop`, as views."""
        part = object.__new__(BarTensors)  # rows of bars are bars: `replace` would check them again
        part.__dict__.update(
            self.__dict__,
            ts=self.ts[start:stop],
            columns={name: column[start:stop] for name, column in self.columns.items()},
            listed=None if self.listed is None else self.listed[start:stop],
        )
        return part

    def once(
        self,
        function: Callable[..., tuple[Tensor, ...]],
        *columns: str,
        **parameters: int | float,
    ) -> tuple[Tensor, ...]:
        """Return what a function with a fixed lookback makes of columns, computed once a block.

        A row of it depends on its own window alone, so rows for a longer part of the history end
        with the rows for this one, bit for bit.
        """
        given = [self[name] for name in columns]
        key = (function, columns, tuple(parameters.items()))
        parts, later = self.keep(key, lambda: function(*given, **parameters))
        return tuple(part[later:] for part in parts)

    def keep(self, key: Hashable, make: Callable[[], Shared]) -> tuple[Shared, int]:
        """Return what is made of these bars once a block, and how many rows earlier it begins.

        Whoever asks first has it made of its own bars; who asks for it of longer bars later has it
        made again. A feature must itself declare what `make` reads.
        """
        if self.kept is None:
            return make(), 0
        begun, made = self.kept.get(key, (self.first + 1, None))
        if begun > self.first:
            begun, made = self.first, make()
            self.kept[key] = begun, made
        return cast(Shared, made), self.first - begun

    def symbol(self, index: int) -> "BarTensors":
        """Return the bars of one symbol alone, [T, 1]."""
        here = slice(index, index + 1)
        return replace(
            self,
            columns={name: column[:, here].contiguous() for name, column in self.columns.items()},
            listed=None if self.listed is None else self.listed[:, here],
        )

    def only(self, columns: Collection[str], *, reader: str) -> "BarTensors":
        """Return nothing but these columns, so that a feature cannot read what it does not declare.

        Raises:
            DataError: if one is missing; names the reader and the column.
        """
        named = replace(self, reader=reader)
        picked = {name: named[name] for name in columns}
        # Nor whether a row is listed, which already decides validity for it.
        return replace(named, columns=picked, listed=None)
