"""Tables that fit any terminal: nothing in them is cut, whatever the width."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import table as rich_table
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement

READABLE = 20
"""Width that a column of longer text is given at least."""

_NATURAL = 1 << 12


class Table(rich_table.Table):
    """A table of rich that is broken into several, one below the other, where it is too wide.

    Each of them repeats the first columns, which name the row. A column of long text wraps between
    words before the table is broken, and a word is broken only where it is wider than the terminal.

    Args:
        headers: of the columns.
        keys: how many columns name a row.
        options: as in rich.
    """

    def __init__(self, *headers: rich_table.Column | str, keys: int = 1, **options: object) -> None:
        super().__init__(*headers, **options)  # type: ignore[arg-type]  # handed on as they are
        self._keys = keys

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, or the tables into which it is broken."""
        sizes = [self._size(console, options, column) for column in self.columns]
        space = options.max_width
        whole = [size.natural for size in sizes]
        if not sizes or self._total(whole) <= space:
            yield from super().__rich_console__(console, options)
            return
        groups = list(self._groups(sizes, space))
        for place, group in enumerate(groups):
            widths = self._widths([sizes[column] for column in group], space)
            part = self._part(group, widths)
            part.title = self.title if place == 0 else None
            part.caption = self.caption if place == len(groups) - 1 else None
            yield from part.__rich_console__(console, options)

    def _size(
        self, console: Console, options: ConsoleOptions, column: rich_table.Column
    ) -> "_Size":
        wide = options.update(width=_NATURAL)
        cells = [Measurement.get(console, wide, cell) for cell in column.cells]
        header = Measurement.get(console, wide, column.header)
        natural = max((cell.maximum for cell in cells), default=0)
        word = max((cell.minimum for cell in cells), default=0)
        least = natural if natural <= READABLE else max(READABLE, word)
        return _Size(max(least, header.minimum, 1), max(natural, header.maximum, 1))

    def _total(self, widths: Sequence[int]) -> int:
        """Return the width of a table with columns of these widths."""
        _, right, _, left = self.padding
        return sum(widths) + len(widths) * (left + right) + len(widths) + 1

    def _groups(self, sizes: "Sequence[_Size]", space: int) -> Iterable[list[int]]:
        """Yield the columns of each table: as many as fit, with those that name the row."""
        keys = list(range(min(self._keys, len(sizes))))
        while len(keys) > 1 and self._total([sizes[key].least for key in keys]) > space // 2:
            keys.pop()  # the first column alone names the row where there is no place for more
        group = list(keys)
        for column in range(len(keys), len(sizes)):
            wider = [*group, column]
            if len(group) > len(keys) and self._total([sizes[c].least for c in wider]) > space:
                yield group
                wider = [*keys, column]
            group = wider
        yield group

    def _widths(self, sizes: "Sequence[_Size]", space: int) -> list[int]:
        """Return the widths of columns: what they need, and what is left over to the narrow ones.

        Where even that is too much, the widest give way, and their words are broken.
        """
        widths = [size.least for size in sizes]
        while self._total(widths) > space and max(widths) > 1:
            widths[widths.index(max(widths))] -= 1
        for place in sorted(range(len(sizes)), key=lambda place: sizes[place].natural):
            spare = space - self._total(widths)
            if spare > 0:
                widths[place] += min(spare, max(sizes[place].natural - widths[place], 0))
        return widths

    def _part(self, columns: Sequence[int], widths: Sequence[int]) -> rich_table.Table:
        """Return a table of some columns."""
        part = rich_table.Table(
            box=self.box,
            padding=self.padding,
            pad_edge=self.pad_edge,
            title_justify=self.title_justify,
            caption_justify=self.caption_justify,
        )
        cells: list[list[RenderableType]] = []
        for place, width in zip(columns, widths, strict=True):
            column = self.columns[place]
            part.add_column(column.header, justify=column.justify, overflow="fold", width=width)
            cells.append(list(column.cells))
        for row in zip(*cells, strict=True):
            part.add_row(*row)
        return part


@dataclass(frozen=True)
class _Size:
    """Width that a column needs to be readable, and that in which nothing of it wraps."""

    least: int
    natural: int
