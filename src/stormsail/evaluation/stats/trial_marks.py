"""Marks of a trial ledger in the manifests of runs: how long it was when each of them began.

A ledger and the file with its last hash, deleted or restored from a copy together, look like a
shorter past. So the manifest of each run names the line with which it began, by number and hash,
and where that ledger lies from the run's folder. A ledger without such a line is not the one that
the run was counted in. What no mark can show: that runs were deleted together with the ledger, and
that a training was done in a workspace of its own.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from stormsail.core.errors import ArtifactError
from stormsail.core.files import documents
from stormsail.core.files.documents import DocumentError, JsonValue
from stormsail.evaluation.stats.trials import TrialLedger, TrialRecords

KEY = "trials"
"""Entry of a manifest."""

MANIFEST = "manifest.json"
_DEPTHS = ("*", "*/*", "*/*/*")  # a run, one of a validation or a search, one of a population


def mark_of(ledger: TrialLedger, line: int, line_hash: str, run: Path) -> dict[str, JsonValue]:
    """Return the mark of a ledger for the manifest of a run that began with this line."""
    place = os.path.relpath(ledger.path.resolve(), run.resolve())
    return {"ledger": Path(place).as_posix(), "line": line, "hash": line_hash}


def check_marks(ledger: TrialLedger, records: TrialRecords) -> None:
    """Check that a ledger holds the line with which each run of its workspace began.

    Raises:
        ArtifactError: if one is missing: the ledger was deleted or restored, or a run comes from
            another workspace.
    """
    known = {trial.number: trial.hash for trial in records.trials}
    for run, mark in _marks(ledger):
        number = mark.get("line")
        if known.get(number if isinstance(number, int) else 0) != mark.get("hash"):
            raise ArtifactError(
                "trials-missing",
                wrong=f"{ledger.path} must hold line {number}, with which the run in {run} began",
                found=f"{len(known)} lines, without it",
                remedy="Restore the newest copy of the ledger and of its `.head`, or move the run "
                "to the workspace in which it was trained: the trials of either are not counted.",
            )


def _marks(ledger: TrialLedger) -> Iterator[tuple[Path, dict[str, JsonValue]]]:
    """Yield each run that names this ledger, with its mark."""
    own = ledger.path.resolve()
    for depth in _DEPTHS:
        for manifest in sorted(own.parent.glob(f"{depth}/{MANIFEST}")):
            try:
                document = documents.decode(manifest.read_bytes())
            except (OSError, DocumentError):
                continue  # whoever reads that run says what is wrong with it
            mark = document.get(KEY) if isinstance(document, dict) else None
            place = mark.get("ledger") if isinstance(mark, dict) else None
            named = isinstance(place, str) and (manifest.parent / place).resolve() == own
            if named and isinstance(mark, dict):
                yield manifest.parent, mark
