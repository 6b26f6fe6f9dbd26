"""A store of synthetic bars for all tests of limits."""

from pathlib import Path

import pytest

from limits_lab import write_store

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="session")
def limits_store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("limits") / "store")


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch):
    """Benchmarks read their files from the current folder."""
    monkeypatch.chdir(ROOT)
