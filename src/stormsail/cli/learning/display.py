"""What `search` and `population` show alike: the lines of their logs, and values of settings."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import typer

from stormsail.cli.output import is_quiet


@contextmanager
def log_lines(name: str) -> Iterator[None]:
    """Print what is logged under a name to stderr: all of it, or only warnings with `--quiet`."""
    shown = logging.WARNING if is_quiet() else logging.INFO
    log, echo = logging.getLogger(name), _Echo(shown)
    level = log.level
    log.addHandler(echo)
    log.setLevel(shown)
    try:
        yield
    finally:
        log.removeHandler(echo)
        log.setLevel(level)


class _Echo(logging.Handler):
    """Prints lines of a log."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(self.format(record), err=True)


def setting_lines(values: Iterable[tuple[str, object]]) -> list[str]:
    """Return settings with their values, numbers with three digits."""
    return [
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values
    ]
