"""Thousands of saves are forced to the disk here; memory that behaves like one makes it quick."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")  # noqa: S108


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder of its own for each test, removed at once; in memory where there is such a place."""
    place = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="stormsail-", dir=place) as folder:
        yield Path(folder)
