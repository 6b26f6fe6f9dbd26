"""`Store`: bars on disk, one Parquet file per symbol and interval, written atomically."""

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stormsail.core.errors import DataError
from stormsail.core.files import atomic
from stormsail.core.files.lock import BusyError, held
from stormsail.core.files.regular import check_regular, open_regular, other_kind
from stormsail.market.bars import Bars, Funding, Mark, check_symbol
from stormsail.market.instruments import Instrument
from stormsail.market.interval import Interval

_META = b"stormsail."
_SEAL = "seal"
_OWN = ("symbol", "interval", _SEAL)
FUNDING = "funding"
SIGNALS = "features"
MARKS = "mark"
TERMS = "terms.json"
_BARS = "bars"
LOCK = ".lock"
"""File in the root of a store that its writer holds."""

WAIT_S = 60.0
"""How long a writer waits for another one: an import of ten million rows holds a store for less."""

_MOST_TERMS = 1 << 20
"""Bytes that a file of terms may have."""


def folder_name(symbol: str) -> str:
    """Return the folder of a symbol: `BTC/USDT:USDT` lies in `BTC-USDT_USDT`."""
    return check_symbol(symbol).replace("/", "-").replace(":", "_")


def symbol_of(folder: str) -> str:
    """Return the symbol of a folder."""
    base, _, rest = folder.partition("-")
    quote, _, settle = rest.partition("_")
    return check_symbol(f"{base}/{quote}" + (f":{settle}" if settle else ""))


class Store:
    """A folder of bars: `<root>/BTC-USDT/1h.parquet`, `<root>/BTC-USDT_USDT/funding.parquet`.

    Beside them lie the terms of the instrument, `<root>/BTC-USDT/terms.json`, where they are known.

    A file is written beside its place, forced onto the disk and renamed over the old one: a killed
    writer leaves the old file or the new one, never a part. Each file carries a hash of its values
    and notes, which every read compares: a flipped bit, or a file put under another symbol's name,
    is refused. The same bars give the same bytes. Where the system does not let a file be read,
    written or removed, methods raise a `DataError`, and what was there is untouched. One process
    writes at a time: who reads bars to write them again with others holds `writing` meanwhile.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        self._writer: int | None = None  # the thread that holds the lock through this object

    @contextlib.contextmanager
    def writing(self, verb: str, *, wait_s: float = WAIT_S) -> Iterator[None]:
        """Be the only writer of the store, across processes; writes inside take part in it.

        Args:
            verb: what is done, such as `stormsail import`: other writers are told.
            wait_s: seconds after which waiting for another writer ends.

        Raises:
            DataError: `data-busy`, with the holder, if another writer went on for so long;
                `data-write` if the store is no folder, or cannot be written.
        """
        if self._writer == threading.get_ident():
            yield
            return
        with contextlib.ExitStack() as stack:
            try:
                atomic.make_folders(self.root)
                stack.enter_context(held(self.root / LOCK, verb=verb, wait_s=wait_s))
            except BusyError as error:
                raise DataError(
                    "data-busy",
                    wrong=f"the store {self.root} must have one writer at a time",
                    found=error.holder,
                    remedy="Wait until it has ended and run the same again; nothing was written.",
                ) from error
            except OSError as error:
                kind = other_kind(self.root)
                raise DataError(
                    "data-write",
                    wrong=f"the store {self.root} must be a folder that can be written",
                    found=str(error) if kind in (None, "a folder") else str(kind),
                    remedy="Name another folder with `--store`, or free space or permissions.",
                ) from error
            self._writer = threading.get_ident()
            try:
                yield
            finally:
                self._writer = None

    def path(self, symbol: str, interval: Interval) -> Path:
        """Return where the bars of a symbol lie."""
        return self.root / folder_name(symbol) / f"{interval}.parquet"

    def funding_path(self, symbol: str) -> Path:
        """Return where the funding rates of a symbol lie."""
        return self.root / folder_name(symbol) / f"{FUNDING}.parquet"

    def write(self, bars: Bars) -> Path:
        """Replace the bars of a symbol and interval; return the file."""
        path = self.path(bars.symbol, bars.interval)
        notes = {**bars.notes, "symbol": bars.symbol, "interval": str(bars.interval)}
        return self._write(path, bars.table, notes)

    def read(self, symbol: str, interval: Interval) -> Bars:
        """Return the stored bars.

        Raises:
            DataError: if there are none, or the file cannot be read.
        """
        owner = {"symbol": symbol, "interval": str(interval)}
        table, notes = _read(self.path(symbol, interval), f"{symbol} {interval}", owner)
        extra = {key: text for key, text in notes.items() if key not in _OWN}
        return Bars(symbol, interval, table, extra)

    def write_funding(self, funding: Funding) -> Path:
        """Replace the funding rates of a symbol; return the file."""
        path = self.funding_path(funding.symbol)
        return self._write(path, funding.table, {"symbol": funding.symbol})

    def read_funding(self, symbol: str) -> Funding | None:
        """Return the stored funding rates, or None if there are none."""
        path = self.funding_path(symbol)
        if not os.path.lexists(path):
            return None
        return Funding(symbol, _read(path, f"{symbol} funding", {"symbol": symbol})[0])

    def mark_path(self, symbol: str, interval: Interval) -> Path:
        """Return where mark prices lie: `<root>/BTC-USDT_USDT/mark/1h.parquet`."""
        return self.root / folder_name(symbol) / MARKS / f"{interval}.parquet"

    def write_mark(self, mark: Mark) -> Path:
        """Replace the mark prices of a symbol and interval; return the file."""
        path = self.mark_path(mark.symbol, mark.interval)
        return self._write(
            path, mark.table, {"symbol": mark.symbol, "interval": str(mark.interval)}
        )

    def read_mark(self, symbol: str, interval: Interval) -> Mark | None:
        """Return the stored mark prices, or None if there are none."""
        path = self.mark_path(symbol, interval)
        if not os.path.lexists(path):
            return None
        owner = {"symbol": symbol, "interval": str(interval)}
        return Mark(symbol, interval, _read(path, f"{symbol} {interval} mark prices", owner)[0])

    def signals_path(self, symbol: str, interval: Interval) -> Path:
        """Return where columns beside the bars lie: `<root>/BTC-USDT/features/1h.parquet`."""
        return self.root / folder_name(symbol) / SIGNALS / f"{interval}.parquet"

    def write_signals(self, bars: Bars, columns: Mapping[str, NDArray[np.float64]]) -> Path:
        """Replace the columns that stand beside the bars, row by row; return the file.

        The file notes the digest of the bars, so that it is never read beside others.
        """
        path = self.signals_path(bars.symbol, bars.interval)
        table = pa.table({"ts": bars.ts, **columns})
        notes = {"symbol": bars.symbol, "interval": str(bars.interval), _BARS: bars.digest()}
        return self._write(path, table, notes)

    def read_signals(self, bars: Bars) -> dict[str, NDArray[np.float64]]:
        """Return the columns beside these bars by name, `ts` among them; empty if there are none.

        Raises:
            DataError: if the file cannot be read, or was written beside other bars.
        """
        path = self.signals_path(bars.symbol, bars.interval)
        if not os.path.lexists(path):
            return {}
        owner = {"symbol": bars.symbol, "interval": str(bars.interval)}
        table, notes = _read(path, f"{bars.symbol} {bars.interval} signals", owner)
        if notes.get(_BARS) != bars.digest():
            raise DataError(
                "data-mismatch",
                wrong=f"{path} must belong to the stored bars of {bars.symbol} {bars.interval}",
                found="signals that were written beside other bars",
                remedy="Draw the world again, or remove the file.",
            )
        return {name: np.asarray(table[name].to_numpy()) for name in table.column_names}

    def terms_path(self, symbol: str) -> Path:
        """Return where the terms of a symbol lie."""
        return self.root / folder_name(symbol) / TERMS

    def write_terms(self, instrument: Instrument) -> Path:
        """Replace the terms of a symbol; return the file."""
        path = self.terms_path(instrument.symbol)
        demand = "written completely before it counts as stored"
        with self.writing("write"), _opened(path, demand=demand) as folder:
            atomic.replace_file(folder, path.name, instrument.encode())
        return path

    def read_terms(self, symbol: str) -> Instrument | None:
        """Return the stored terms, or None if there are none, as in a store of earlier versions.

        Raises:
            DataError: if the file cannot be read, was changed, or belongs to another symbol.
        """
        path = self.terms_path(symbol)
        if not os.path.lexists(path):
            return None
        try:
            with open_regular(path) as file:
                instrument = Instrument.decode(file.read(_MOST_TERMS))
        except (OSError, ValueError) as error:
            raise DataError(
                "data-unreadable",
                wrong=f"{path} must be terms that the store has written",
                found=str(error).split("\n")[0] or type(error).__name__,
                remedy="Remove the file and fetch or give the terms again; it is left as it is.",
            ) from error
        _check_owner(path, {"symbol": instrument.symbol}, {"symbol": symbol})
        return instrument

    def remove_terms(self, symbol: str) -> None:
        """Remove the terms of a symbol, if there are any."""
        self._remove(self.terms_path(symbol))

    def remove_funding(self, symbol: str) -> None:
        """Remove the funding rates of a symbol, if there are any."""
        self._remove(self.funding_path(symbol))

    def remove_signals(self, symbol: str, interval: Interval) -> None:
        """Remove the columns beside the bars of a symbol and interval, if there are any."""
        self._remove(self.signals_path(symbol, interval))

    def contents(self) -> list[tuple[str, Interval]]:
        """Return every symbol and interval that is here, sorted."""
        return sorted(
            (symbol_of(path.parent.name), Interval.parse(path.stem))
            for path in self.root.glob("*/*.parquet")
            if path.stem != FUNDING
        )

    def sweep(self, symbol: str) -> None:
        """Remove temporary files that killed writers left beside the bars of a symbol."""
        folder = self.root / folder_name(symbol)
        if any(folder.glob(f"{atomic.TEMPORARY}*")):
            with self.writing("sweep"), _opened(folder / "*", demand="free of temporary files"):
                pass

    def _write(self, path: Path, table: pa.Table, notes: dict[str, str]) -> Path:
        sealed = {**notes, _SEAL: _seal(table, notes)}
        metadata = {_META + key.encode(): text.encode() for key, text in sorted(sealed.items())}
        demand = "written completely before it counts as stored"
        with (
            self.writing("write"),
            _opened(path, demand=demand) as folder,
            atomic.replacing_file(folder, path.name) as sink,
        ):
            pq.write_table(table.replace_schema_metadata(metadata), sink, compression="zstd")
        return path

    def _remove(self, path: Path) -> None:
        if not os.path.lexists(path):
            return
        demand = "removed, because what it belonged to was replaced"
        with self.writing("remove"), _opened(path, demand=demand) as folder:
            if atomic.exists(folder, path.name):  # or somebody else removed it meanwhile
                atomic.remove_tree(folder, path.name)


def _seal(table: pa.Table, notes: dict[str, str]) -> str:
    """Return the SHA-256 of every value and note."""
    digest = hashlib.sha256()
    for key, text in sorted(notes.items()):
        digest.update(f"{key}={len(text.encode())}:{text}\n".encode())
    for name in table.column_names:
        column = table[name]
        digest.update(f"{name} {column.type} {len(column)} {column.null_count}\n".encode())
        if column.null_count:
            digest.update(np.ascontiguousarray(column.is_valid().to_numpy()).data)
        digest.update(np.ascontiguousarray(column.to_numpy()).data)
    return digest.hexdigest()


@contextlib.contextmanager
def _opened(path: Path, *, demand: str) -> Iterator[int]:
    """Open the folder of a file and remove temporary files; turn failures into `data-write`.

    The caller holds the store: what a living writer has begun is never removed.
    """
    try:
        atomic.make_folders(path.parent)
        with atomic.open_folder(path.parent, follow=True) as folder:
            atomic.remove_leftovers(folder)
            yield folder
    except OSError as error:
        raise DataError(
            "data-write",
            wrong=f"{path} must be {demand}",
            found=str(error),
            remedy="Free space or permissions and run it again; what was stored is untouched.",
        ) from error


def _read(path: Path, what: str, owner: dict[str, str]) -> tuple[pa.Table, dict[str, str]]:
    if not os.path.lexists(path):
        raise DataError(
            "data-missing",
            wrong=f"{what} must be in the store",
            found=f"no file {path}",
            remedy="Run `stormsail import`, `stormsail fetch` or `stormsail synth` first.",
        )
    problem = "values or notes that do not fit the hash written with them"
    cause: Exception | None = None
    try:
        check_regular(path)
        with pq.ParquetFile(path) as file:
            table = file.read()
        table.validate(full=True)
        notes = _notes(table)
        if notes.get(_SEAL) == _seal(table, {k: t for k, t in notes.items() if k != _SEAL}):
            _check_owner(path, notes, owner)
            return table, notes
    except (OSError, pa.ArrowException, UnicodeError, ValueError, MemoryError) as error:
        cause, problem = error, str(error).split("\n")[0] or type(error).__name__
    raise DataError(
        "data-unreadable",
        wrong=f"{path} must be a whole Parquet file that the store has written",
        found=problem,
        remedy="Import or fetch it again; the file is left as it is.",
    ) from cause


def _notes(table: pa.Table) -> dict[str, str]:
    metadata = table.schema.metadata or {}
    return {
        key.removeprefix(_META).decode(): text.decode()
        for key, text in metadata.items()
        if key.startswith(_META)
    }


def _check_owner(path: Path, notes: dict[str, str], owner: dict[str, str]) -> None:
    written = {key: notes.get(key, "nothing") for key in owner}
    if written != owner:
        raise DataError(
            "data-mismatch",
            wrong=f"{path} must hold {' '.join(owner.values())}",
            found=" ".join(written.values()),
            remedy="Somebody moved or copied the file; put it back, or import it again.",
        )
