"""Features of a synthetic world on disk, beside the bars of a store."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stormsail.core import atomic
from stormsail.core.errors import DataError
from stormsail.market.bars import Bars
from stormsail.market.interval import Interval
from stormsail.market.store import Store, folder_name
from stormsail.market.synthetic.generate import World
from stormsail.market.synthetic.world import Array

FOLDER = "features"


def features_path(store: Store, symbol: str, interval: Interval) -> Path:
    """Return where the features of a symbol lie: `<root>/BTC-USDT/features/1h.parquet`."""
    return store.root / folder_name(symbol) / FOLDER / f"{interval}.parquet"


def write_features(store: Store, bars: Bars, columns: Mapping[str, Array]) -> Path:
    """Write columns that stand beside the bars, row by row; return the file.

    Raises:
        DataError: if the system does not let the file be written.
    """
    path = features_path(store, bars.symbol, bars.interval)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"ts": bars.ts, **columns}), sink, compression="zstd")
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


def read_features(store: Store, symbol: str, interval: Interval) -> dict[str, Array] | None:
    """Return the stored features by name, `ts` among them, or None if there are none.

    Raises:
        DataError: if the file cannot be read.
    """
    path = features_path(store, symbol, interval)
    if not path.exists():
        return None
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            "data-unreadable",
            wrong=f"{path} must be a whole Parquet file",
            found=str(error).split("\n")[0],
            remedy="Draw the world again with `stormsail synth`; the file is left as it is.",
        ) from error
    return {name: np.asarray(table[name].to_numpy()) for name in table.column_names}


def write_world(store: Store, world: World) -> list[Path]:
    """Write bars, funding and features of every symbol; return the files."""
    written = []
    for bars in world.bars:
        written.append(store.write(bars))
        if bars.symbol in world.funding:
            written.append(store.write_funding(world.funding[bars.symbol]))
        if world.features is not None:
            written.append(write_features(store, bars, world.features[bars.symbol]))
    return written
