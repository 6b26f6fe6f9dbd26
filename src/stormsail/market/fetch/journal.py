"""Journal of a fetch: received pages on disk, from which a killed fetch continues.

Rewriting a large Parquet file after each page would cost more than the download. So pages are
collected into parts of their own, in a hidden folder beside the bars; each part is there wholly or
not at all, and says for which span it holds everything. What another process holds, or the system
refuses, is a `DataError`.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from stormsail.core.errors import DataError
from stormsail.core.files import atomic
from stormsail.core.files.lock import BusyError, held
from stormsail.market.fetch.plan import Span

_STAMP = b"stormsail.fetch"
_LIMIT = 1 << 28  # bytes of one part; ours are far smaller
_SUFFIX = ".parquet"
FETCH = "stormsail fetch"
"""What a fetch holds locks for, in the words of its user."""

_WAIT_S = 5.0  # a fetch of years takes hours: nobody waits for its end


@dataclass(frozen=True)
class Part:
    """Bars of a span for which the exchange gave all it has."""

    span: Span
    table: pa.Table


class Journal:
    """The parts of one symbol and interval, held by one process at a time.

    Args:
        folder: the open, locked folder of the parts.
        stamp: where the bars come from. Parts with another stamp are not used.
    """

    def __init__(self, folder: int, path: Path, stamp: str) -> None:
        self._folder = folder
        self._path = path
        self._stamp = stamp.encode()

    def parts(self) -> list[Part]:
        """Return the parts of an earlier fetch, and remove what cannot be used."""
        parts = []
        for name in atomic.entries(self._folder):
            part = self._read(name)
            if part is None:
                atomic.remove_tree(self._folder, name)
            else:
                parts.append(part)
        return parts

    def write(self, part: Part) -> None:
        """Add a part."""
        table = part.table.replace_schema_metadata({_STAMP: self._stamp})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        name = f"{part.span.start}-{part.span.end}{_SUFFIX}"
        with _loud(self._path):
            atomic.replace_file(self._folder, name, sink.getvalue().to_pybytes())

    def _read(self, name: str) -> Part | None:
        """Return a part, or None if it is unreadable or of another source: it is fetched again."""
        start, dash, end = name.removesuffix(_SUFFIX).partition("-")
        if not (dash and start.isdecimal() and end.isdecimal()):
            return None
        try:
            data = atomic.read_file(self._folder, name, limit=_LIMIT)
            table = pq.read_table(pa.BufferReader(data))
            table.validate(full=True)
        except (OSError, pa.ArrowException):
            return None
        if (table.schema.metadata or {}).get(_STAMP) != self._stamp:
            return None
        return Part(Span(int(start), int(end)), table.replace_schema_metadata(None))


def journal_path(bars: Path) -> Path:
    """Return where the parts of a bar file lie."""
    return bars.parent / f".fetch-{bars.stem}"


@contextlib.contextmanager
def open_journal(bars: Path, stamp: str) -> Iterator[Journal]:
    """Hold the journal of a bar file."""
    path = journal_path(bars)
    with contextlib.ExitStack() as stack:
        with _loud(path):
            atomic.make_folders(path)
            stack.enter_context(held(_lock_path(bars), verb=FETCH, wait_s=_WAIT_S))
            atomic.make_folders(path)  # another fetch may have removed it when it was done
            folder = stack.enter_context(atomic.open_folder(path))
        yield Journal(folder, path, stamp)


def clear_lock(bars: Path) -> None:
    """Remove the lock file that a killed fetch left, if there is one."""
    path = _lock_path(bars)
    if path.exists():
        with contextlib.suppress(BusyError, OSError), held(path, verb=FETCH, wait_s=0.0):
            pass


def _lock_path(bars: Path) -> Path:
    return bars.parent / f".fetch-{bars.stem}.lock"


def remove_journal(bars: Path) -> None:
    """Remove the parts; only after what they hold is in the bar file."""
    path = journal_path(bars)
    with _loud(path), atomic.open_folder(path.parent, follow=True) as parent:
        atomic.remove_tree(parent, path.name)


@contextlib.contextmanager
def _loud(path: Path) -> Iterator[None]:
    try:
        yield
    except BusyError as error:
        raise DataError(
            "data-busy",
            wrong=f"{path} must be used by one fetch at a time",
            found=error.holder,
            remedy="Wait for the other fetch to end, or stop it.",
        ) from error
    except OSError as error:
        raise DataError(
            "data-write",
            wrong=f"{path} must take what was fetched before it counts as kept",
            found=str(error) or type(error).__name__,
            remedy="Free space or permissions and run it again; what was stored is untouched.",
        ) from error
