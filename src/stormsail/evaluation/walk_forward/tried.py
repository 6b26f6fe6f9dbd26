"""Returns of the configurations that a workspace has tried, kept beside its trial ledger.

Whether choosing the best of several configurations chose anything is a question about the returns
of all of them over the same bars (`stats.overfitting`). Each validation that finishes leaves its
own in `trial-returns/<key>.parquet`, columns `ts` and `return`, and reads those of the validations
that stand in the ledger before it.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stormsail.core.errors import ArtifactError
from stormsail.core.files import atomic
from stormsail.core.files.artifact import write_error
from stormsail.evaluation.engine.files import table_bytes
from stormsail.evaluation.stats.figures import Array

FOLDER = "trial-returns"
"""Folder of the returns, beside the ledger."""

SAME_BARS = 0.9
"""Share of the bars of an account that another one must have traded to be compared with it."""

Times = NDArray[np.int64]


def keep_returns(folder: Path, key: str, ts: Times, returns: Array) -> None:
    """Write the returns of a validation, or write them again.

    Args:
        folder: of the workspace's returns.
        key: of the validation in the ledger.
        ts: close time of each bar, [T].
        returns: of each bar, [T].

    Raises:
        ArtifactError: if the disk refuses.
    """
    table = pa.table({"ts": ts, "return": returns})
    try:
        atomic.make_folders(folder)
        with atomic.open_folder(folder, follow=True) as place:
            atomic.replace_file(place, f"{key}.parquet", table_bytes(table))
    except OSError as error:
        raise write_error(folder, error) from error


def tried_returns(folder: Path, keys: Sequence[str], ts: Times, returns: Array) -> Array:
    """Return an account and what was tried before it, over the bars that all of them traded.

    One that traded less than nine tenths of these bars, or left no returns, is left out.

    Args:
        folder: of the workspace's returns.
        keys: of the validations before.
        ts: close time of each bar of the account, [T].
        returns: of the account, [T].

    Returns:
        Columns [T', C], the account's own last.

    Raises:
        ArtifactError: if a file is not what `keep_returns` wrote.
    """
    columns, common = [], np.ones(ts.size, dtype=np.bool_)
    for key in keys:
        path = folder / f"{key}.parquet"
        if not path.is_file():
            continue
        times, values = _read(path)
        place = np.minimum(np.searchsorted(times, ts), max(times.size - 1, 0))
        shared = times[place] == ts if times.size else np.zeros_like(common)
        if shared.mean() >= SAME_BARS:
            columns.append(values[place])
            common &= shared
    return np.stack([*columns, returns], axis=1)[common]


def _read(path: Path) -> tuple[Times, Array]:
    try:
        table = pq.read_table(path, columns=["ts", "return"])
        return table["ts"].to_numpy(), table["return"].to_numpy()
    except (OSError, KeyError, pa.ArrowException) as error:
        raise ArtifactError(
            "artifact-corrupt",
            wrong=f"{path} must hold the returns of a validation",
            found=f"{type(error).__name__}: {error}",
            remedy="Restore it from a copy, or remove it: that configuration is then left out of "
            "the probability of overfitting, and counts as a trial all the same.",
        ) from error
