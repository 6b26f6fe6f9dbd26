"""What a shell completes: configurations, and settings by their path.

A shell waits for the answer at every press of the key, so nothing here imports torch: the paths
stand in a file that `scripts/config_page.py` writes from the settings themselves.
"""

from collections.abc import Iterator
from pathlib import Path

SETTINGS = Path(__file__).with_name("settings.tsv")
"""One line a setting: family, path, what it does."""

TRAINING, BACKTEST, VALIDATION = "training", "backtest", "validation"
"""Families of settings."""


def complete_config(incomplete: str) -> list[tuple[str, str]]:
    """Return shipped configurations, and folders and TOML files, that begin so."""
    from stormsail.core.shipped import shipped

    names = [(name, "shipped") for name in shipped() if name.startswith(incomplete)]
    return [*names, *((path, "") for path in _files(incomplete))]


def _files(incomplete: str) -> Iterator[str]:
    head, slash, start = incomplete.rpartition("/")
    folder = Path(head + slash or ".")
    try:
        inside = sorted(folder.iterdir())
    except OSError:
        return
    for path in inside:
        if path.name.startswith(start) and (start or not path.name.startswith(".")):
            if path.is_dir():
                yield f"{head}{slash}{path.name}/"
            elif path.suffix == ".toml":
                yield f"{head}{slash}{path.name}"


def complete_setting(incomplete: str) -> list[tuple[str, str]]:
    """Return settings of a training that begin so, with what they do."""
    return _settings(TRAINING, incomplete)


def complete_backtest_setting(incomplete: str) -> list[tuple[str, str]]:
    """Return settings of a backtest that begin so, with what they do."""
    return _settings(BACKTEST, incomplete)


def complete_validation_setting(incomplete: str) -> list[tuple[str, str]]:
    """Return settings of a validation that begin so, with what they do."""
    return _settings(VALIDATION, incomplete)


def _settings(family: str, incomplete: str) -> list[tuple[str, str]]:
    settings = []
    for line in SETTINGS.read_text(encoding="utf-8").splitlines():
        own, path, words = line.split("\t")
        if own == family and path.startswith(incomplete):
            settings.append((f"{path}=", words))
    return settings
