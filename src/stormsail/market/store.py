"""Bars on disk: one Parquet file per symbol and interval, replaced whole or not at all."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from stormsail.core import atomic
from stormsail.core.errors import DataError
from stormsail.market.bars import Bars, Funding, check_symbol
from stormsail.market.interval import Interval

_META = b"stormsail."
FUNDING = "funding"


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

    A file is written beside its place, forced onto the disk and renamed over the old one: a killed
    writer leaves the old file or the new one, never a part.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def path(self, symbol: str, interval: Interval) -> Path:
        """Return where the bars of a symbol lie."""
        return self.root / folder_name(symbol) / f"{interval}.parquet"

    def funding_path(self, symbol: str) -> Path:
        """Return where the funding rates of a symbol lie."""
        return self.root / folder_name(symbol) / f"{FUNDING}.parquet"

    def write(self, bars: Bars) -> Path:
        """Replace the bars of a symbol and interval; return the file.

        Raises:
            DataError: if the system does not let the file be written; what was there is untouched.
        """
        path = self.path(bars.symbol, bars.interval)
        notes = {"symbol": bars.symbol, "interval": str(bars.interval), **bars.notes}
        return _write(path, bars.table, notes)

    def read(self, symbol: str, interval: Interval) -> Bars:
        """Return the stored bars.

        Raises:
            DataError: if there are none, or the file cannot be read.
        """
        table, notes = _read(self.path(symbol, interval), f"{symbol} {interval}")
        extra = {key: text for key, text in notes.items() if key not in ("symbol", "interval")}
        return Bars(symbol, interval, table, extra)

    def write_funding(self, funding: Funding) -> Path:
        """Replace the funding rates of a symbol; return the file."""
        return _write(self.funding_path(funding.symbol), funding.table, {"symbol": funding.symbol})

    def read_funding(self, symbol: str) -> Funding | None:
        """Return the stored funding rates, or None if there are none."""
        path = self.funding_path(symbol)
        return Funding(symbol, _read(path, f"{symbol} funding")[0]) if path.exists() else None

    def contents(self) -> list[tuple[str, Interval]]:
        """Return every symbol and interval that is here, sorted."""
        return [
            (symbol_of(path.parent.name), Interval.parse(path.stem))
            for path in sorted(self.root.glob("*/*.parquet"))
            if path.stem != FUNDING
        ]


def _write(path: Path, table: pa.Table, notes: dict[str, str]) -> Path:
    metadata = {_META + key.encode(): text.encode() for key, text in notes.items()}
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(metadata), sink, compression="zstd")
    try:
        atomic.make_folders(path.parent)
        with atomic.locked_folder(path.parent) as folder:
            atomic.replace_file(folder, path.name, sink.getvalue().to_pybytes())
    except (OSError, atomic.FolderBusyError) as error:
        raise DataError(
            "data-write",
            wrong=f"{path} must be written completely before it counts as stored",
            found=str(error) or type(error).__name__,
            remedy="Free space or permissions and run it again; what was stored is untouched.",
        ) from error
    return path


def _read(path: Path, what: str) -> tuple[pa.Table, dict[str, str]]:
    if not path.exists():
        raise DataError(
            "data-missing",
            wrong=f"{what} must be in the store",
            found=f"no file {path}",
            remedy="Run `stormsail import`, `stormsail fetch` or `stormsail synth` first.",
        )
    try:
        table = pq.read_table(path)
        table.validate(full=True)
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            "data-unreadable",
            wrong=f"{path} must be a whole Parquet file",
            found=str(error).split("\n")[0],
            remedy="Import or fetch it again; the file is left as it is.",
        ) from error
    metadata = table.schema.metadata or {}
    notes = {
        key.removeprefix(_META).decode(): text.decode()
        for key, text in metadata.items()
        if key.startswith(_META)
    }
    return table, notes
