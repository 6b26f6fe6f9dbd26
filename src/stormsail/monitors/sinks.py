"""Files for the metrics and events of a run: Parquet, JSON lines, TensorBoard.

A killed run resumes from its last checkpoint and repeats everything after it identically. So
`metrics.parquet` and `events.jsonl` are cut back to that checkpoint on resume, and end up with the
bytes of an uninterrupted run: their content is a function of the records alone. Times of day are
therefore kept out.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stormsail.core.clock import Clock
from stormsail.core.errors import ChoiceError, DataError, RangeError
from stormsail.core.files import atomic, documents
from stormsail.core.files.documents import JsonValue
from stormsail.monitors.board_layout import LAYOUT

_ROW_GROUP = 8192
"""Rows of a group; fixed, because it decides the bytes."""

_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class MetricsFile:
    """One Parquet file: a row for each update, a column of float64 for each metric.

    Rows are collected in memory, and `flush` replaces the whole file at once: a reader sees the
    file before or after it, whatever dies. Its bytes depend on the rows alone (and on the version
    of the Parquet library), not on how often it was flushed. The price is that a flush writes all
    rows again, about 3 milliseconds for each thousand with 170 metrics; flush it before each
    checkpoint and at the end, not at every update.

    Args:
        path: of the file.
        rows: updates that the run resumes after; the file must hold at least that many rows, and
            what it holds beyond is dropped. 0 starts a new file.

    Raises:
        DataError: if a run resumes and the file is missing, damaged or too short.
        RangeError: if `rows` is negative.
    """

    def __init__(self, path: Path | str, *, rows: int = 0) -> None:
        if rows < 0:
            raise RangeError(
                wrong="`rows` must be at least 0",
                found=str(rows),
                remedy="Pass the number of updates that the checkpoint had seen.",
            )
        self.path = Path(path)
        self.names: tuple[str, ...] = ()
        self._values: NDArray[np.float64] = np.empty((0, 0))
        self._rows = 0
        if rows:
            self.names, values = _read_metrics(self.path, rows)
            self._values, self._rows = values, rows
        self.flush()

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._rows

    def row(self, place: int) -> dict[str, float]:
        """Return the metrics of one row."""
        return dict(zip(self.names, self._values[: self._rows][place].tolist(), strict=True))

    def column(self, name: str) -> NDArray[np.float64]:
        """Return a metric in all rows; empty where there is none of that name."""
        if name not in self.names:
            return np.empty(0)
        return self._values[: self._rows, self.names.index(name)]

    def append(self, metrics: Mapping[str, float]) -> None:
        """Add the row of an update.

        Raises:
            ChoiceError: if it has other metrics than the rows before.
        """
        if not self.names:
            self.names = tuple(metrics)
            self._values = np.empty((64, len(self.names)))
        if metrics.keys() != set(self.names):
            odd = sorted(metrics.keys() ^ set(self.names))
            raise ChoiceError(
                wrong="every update must report the metrics of the first one",
                found=f"a difference in {', '.join(odd[:3])}{' and others' * (len(odd) > 3)}",
                remedy="Report NaN where a metric is unknown.",
            )
        if self._rows == len(self._values):
            more = np.empty((max(len(self._values), 64), len(self.names)))
            self._values = np.concatenate((self._values, more))
        self._values[self._rows] = [metrics[name] for name in self.names]
        self._rows += 1

    def flush(self) -> None:
        """Write all rows, onto the disk.

        Raises:
            DataError: if the system does not let the file be written; what was there is untouched.
        """
        rows = np.asfortranarray(self._values[: self._rows])
        table = pa.table({name: rows[:, place] for place, name in enumerate(self.names)})
        sink = pa.BufferOutputStream()
        # Without dictionaries, which take three times as long and save nothing on such numbers.
        pq.write_table(
            table, sink, compression="zstd", use_dictionary=False, row_group_size=_ROW_GROUP
        )
        with _folder(self.path) as folder:
            atomic.replace_file(folder, self.path.name, sink.getvalue().to_pybytes())


def _read_metrics(path: Path, rows: int) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    try:
        with pq.ParquetFile(path) as file:
            table = file.read()
        columns = [np.asarray(column.to_numpy(), dtype=np.float64) for column in table.columns]
    except (OSError, pa.ArrowException, ValueError) as error:
        raise _unfit(path, f"{rows} rows", str(error).split("\n")[0]) from error
    if table.num_rows < rows:
        raise _unfit(path, f"{rows} rows", f"{table.num_rows}")
    return tuple(table.column_names), np.stack(columns, 1)[:rows]


class EventFile:
    """One JSON object a line, each forced to the disk: alarms, checkpoints, scores.

    Keys are sorted and numbers shortest, so equal events are equal bytes. An event holds no time of
    day; with a clock, a file beside it (`<name>.times`) gets one line for each: number of the
    event, nanoseconds since 1970. That one is only ever added to.

    What happened to the process, such as being resumed, belongs elsewhere: here it would be the
    difference between two runs that are otherwise equal.

    Args:
        path: of the file.
        length: bytes of it that the checkpoint knew of; what follows is cut off. 0 starts a new
            file.
        clock: for the times of events; None writes none.

    Raises:
        DataError: if the file is shorter than `length`, or cannot be written.
    """

    def __init__(self, path: Path | str, *, length: int = 0, clock: Clock | None = None) -> None:
        self.path = Path(path)
        self.clock = clock
        kept = b""
        if length:
            kept = _read_events(self.path, length)
        with _folder(self.path) as folder:
            atomic.replace_file(folder, self.path.name, kept)
        self._length, self._count = len(kept), kept.count(b"\n")

    @property
    def length(self) -> int:
        """Bytes so far; a checkpoint keeps this number."""
        return self._length

    def append(self, event: Mapping[str, JsonValue]) -> None:
        """Add an event and wait until it is on the disk.

        Raises:
            DocumentError: if it holds what JSON cannot give back, such as NaN.
            DataError: if the system refuses.
        """
        line = documents.encode(dict(event)) + b"\n"
        _append(self.path, line)
        if self.clock is not None:
            times = self.path.with_name(self.path.name + ".times")
            _append(times, b"%d %d\n" % (self._count, self.clock.now_ns()))
        self._length += len(line)
        self._count += 1


def _read_events(path: Path, length: int) -> bytes:
    try:
        with path.open("rb") as file:
            kept = file.read(length)
    except OSError as error:
        raise _unfit(path, f"{length} bytes", str(error)) from error
    if len(kept) < length or not kept.endswith(b"\n"):
        whole = "a line that is cut off" if len(kept) == length else f"{len(kept)}"
        raise _unfit(path, f"{length} bytes of whole lines", whole)
    return kept


def _append(path: Path, data: bytes) -> None:
    with _folder(path) as folder:
        descriptor = os.open(path.name, _APPEND, 0o644, dir_fd=folder)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class TensorBoard:
    """Scalars for TensorBoard. Its own files hold times of day and are never compared.

    The charts of `board_layout` are on its page "Custom Scalars".

    Args:
        folder: where its files lie, `tb` of a run.
        purge_step: first step that is written again after a resume; what is on show from there on
            is replaced. None for a new run.
    """

    def __init__(self, folder: Path | str, *, purge_step: int | None = None) -> None:
        # Here, because it takes a second, and a run without TensorBoard should not wait for it.
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=purge_step)
        # At every start: the newest is shown, and a resumed run may know more charts.
        self._writer.add_custom_scalars(
            {
                group: {title: ["Multiline", list(tags)] for title, tags in charts.items()}
                for group, charts in LAYOUT.items()
            }
        )

    def write(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Add all metrics at a step; NaN leaves a gap."""
        for name, value in metrics.items():
            if value == value:
                self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Hand everything to the system."""
        self._writer.flush()

    def close(self) -> None:
        """Write what is left and end its thread."""
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@contextmanager
def _folder(path: Path) -> Iterator[int]:
    """Open the folder of a file, made if need be; refuse in our words what fails inside."""
    try:
        atomic.make_folders(path.parent)
        with atomic.open_folder(path.parent, follow=True) as folder:
            yield folder
    except OSError as error:
        raise DataError(
            "data-write",
            wrong=f"{path} must be written",
            found=str(error),
            remedy="Free space or permissions and resume the run; no checkpoint is lost.",
        ) from error


def _unfit(path: Path, wanted: str, problem: str) -> DataError:
    return DataError(
        "data-mismatch",
        wrong=f"{path} must hold the {wanted} that the checkpoint knew of",
        found=problem,
        remedy="Put the file back, or resume from an earlier checkpoint.",
    )
