"""What a shell completes: configurations, and settings by their path.

A shell waits for the answer at every press of the key, so nothing here imports torch: the paths
stand in a file that `scripts/config_page.py` writes from the settings themselves.
"""

from collections.abc import Iterator
from pathlib import Path

SETTINGS = Path(__file__).with_name("settings.tsv")
"""One line a setting: family, path, default, what it does."""

VALUE = "VALUE"
"""Stands for the value of a setting whose default cannot be typed as it is."""

TRAINING, BACKTEST, VALIDATION = "training", "backtest", "validation"
"""Families of settings."""


def complete_config(incomplete: str) -> list[tuple[str, str]]:
    """Return shipped configurations, and folders and TOML files, that begin so.

    Of a single folder also what is in it: behind the only answer a shell puts a space.
    """
    from stormsail.core.shipped import shipped

    names = [(name, "shipped") for name in shipped() if name.startswith(incomplete)]
    files = list(_files(incomplete))
    if not names and len(files) == 1 and files[0].endswith("/"):
        files += _files(files[0])
    return [*names, *((path, "") for path in files)]


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
    """Return settings up to their `=`; a single one also with a value.

    A shell puts a space behind the only answer, which would part the setting from its value. Two
    answers that begin alike are completed up to where they differ.
    """
    settings = []
    for line in SETTINGS.read_text(encoding="utf-8").splitlines():
        own, path, default, words = line.split("\t")
        if own == family and f"{path}=".startswith(incomplete):
            settings.append((path, default or VALUE, words))
    answers = [(f"{path}=", words) for path, _, words in settings]
    if len(settings) == 1:
        path, default, words = settings[0]
        answers.append((f"{path}={default}", words))
    return answers
