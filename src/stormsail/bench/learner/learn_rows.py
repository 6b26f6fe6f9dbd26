"""Rows of `stormsail bench learn` in a file, by what a run depends on.

A run is known by its key, a hash of everything that it depends on: settings with all defaults
spelt out, seed, episodes, and for another library its own settings. Where a default changes, so
does the key: rows of other settings stay in the file and are never taken for those of a new one.
The version of the package is in each row and not in the key: a released version may judge the rows
of an earlier one, and the command says so.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stormsail import __version__
from stormsail.bench import campaign

FIELDS = {
    "key": str, "name": str, "learner": str, "variant": str, "seed": int, "episodes": int,
    "score": float, "spread": float, "steps": int, "seconds": float, "reason": str, "version": str,
}  # fmt: skip
"""That every row has, with their types; a number that is not finite is written as null."""


def run_key(document: Mapping[str, Any]) -> str:
    """Return the hash of what a run depends on, whatever the order of its parts."""
    text = json.dumps(document, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class RowFile(campaign.RowLog):
    """Rows of finished runs by key, in a file that this process alone writes to.

    Attributes:
        rows: those that it holds, by key; of two with one key the later.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        super().__init__(path, descriptor)
        parsed = [self._known(number, row) for number, row in enumerate(self.lines, start=1)]
        self.rows: dict[str, dict[str, Any]] = {row["key"]: row for row in parsed}

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row; the version is added here."""
        document = {**row, "version": __version__}
        for name in ("score", "spread"):
            document[name] = None if math.isnan(document[name]) else document[name]
        self.append(document)
        self.rows[row["key"]] = {**row, "version": __version__}

    def _known(self, number: int, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row with its numbers, NaN where they are not finite; refuse other fields."""
        try:
            absent = {name for name, kind in FIELDS.items() if not _fits(row[name], kind)}
        except KeyError as error:
            raise campaign.damaged(self.path, number, f"KeyError: {error}") from None
        if absent:
            problem = f"another type in {', '.join(sorted(absent))}"
            raise campaign.damaged(self.path, number, problem)
        numbers = {name: row[name] for name in ("score", "spread")}
        numbers = {name: math.nan if x is None else float(x) for name, x in numbers.items()}
        return {**row, **numbers}


def _fits(value: object, kind: type) -> bool:
    """Return whether JSON gave a value of that type; null is a number that is not finite."""
    if kind is float:
        return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
    return isinstance(value, kind) and not isinstance(value, bool)
