"""Other people's metrics, imported for comparison only where they are installed."""

import warnings

import pytest


def peer(name):
    """Return a library, or skip the test; what it warns about while loading is its own affair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)
