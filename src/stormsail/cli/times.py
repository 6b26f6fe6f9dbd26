"""Parsing of days and times in command line options."""

from datetime import UTC, datetime

from stormsail.core.errors import ConfigError


def utc_time(option: str, text: str) -> datetime:
    """Return a day or time; without a zone it is UTC.

    Raises:
        ConfigError: if it cannot be read.
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            "config-value",
            wrong=f"`{option}` must be a day or a time",
            found=f"`{text}`",
            remedy="Write `2020-01-31` or `2020-01-31T08:00Z`.",
        ) from error
    return time if time.tzinfo else time.replace(tzinfo=UTC)
