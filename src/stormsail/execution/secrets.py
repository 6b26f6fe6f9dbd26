"""API keys: where they are read from, a type that does not show them, and logs without them.

Keys come from the environment, from a file that only its owner can read, or from the keyring of the
operating system. They are never arguments of a command, which every user of a machine can list.
"""

import base64
import contextlib
import errno
import hmac
import logging
import os
import stat
import tomllib
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, SupportsIndex
from urllib.parse import quote

from stormsail.core.errors import ConfigError

MASK = "***"
KEYS_FILE = Path("~/.config/stormsail/keys.toml")
"""File of the keys: a table for each exchange, with `key` and `secret`."""
LOGGERS = ("", "ccxt", "urllib3", "aiohttp", "asyncio", "websockets")
"""Loggers that get the filter; the first is the root."""
_CLOSE = "Run `chmod 600` on it. If others had access to this machine, make new keys."
_OWN_FILE = "Name a regular file of your own with the mode 600, and not by a link."
_SERVICE = "stormsail"
_MOST_BYTES = 1 << 16
_SHORTEST = 8  # a shorter text would be found by chance in half of all log lines


class _Text(str):
    """The text of a secret on its way to a library that needs it; containers show a mask."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(MASK)


class Secret:
    """A text that shows itself as `***` wherever it is printed, formatted or copied out."""

    __slots__ = ("__text",)

    def __init__(self, text: str) -> None:
        self.__text = _Text(text)

    def reveal(self) -> str:
        """Return the text, for the one call that needs it."""
        return self.__text

    def __repr__(self) -> str:
        return MASK

    def __str__(self) -> str:
        return MASK

    def __format__(self, _spec: str) -> str:
        return MASK

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self.__text.encode(), other.reveal().encode())

    def __hash__(self) -> int:
        return hash(self.__text)

    def __copy__(self) -> "Secret":
        return self

    def __deepcopy__(self, _memo: object) -> "Secret":
        return self

    def __reduce_ex__(self, _protocol: SupportsIndex) -> NoReturn:
        raise TypeError("a secret is not written anywhere")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not written anywhere")


@dataclass(frozen=True)
class Credentials:
    """An API key with its secret, and where they were read: no part of it shows."""

    key: Secret
    secret: Secret
    source: str


def load_credentials(
    exchange: str, *, environment: MutableMapping[str, str], file: Path | None = None
) -> Credentials:
    """Return the keys of an exchange from the first place that has them.

    They are taken out of the environment, so that no program that is started later inherits them.

    Args:
        exchange: its name; the variables are `STORMSAIL_<EXCHANGE>_KEY` and `..._SECRET`.
        environment: variables of the process.
        file: a TOML file; the default is `~/.config/stormsail/keys.toml`.

    Raises:
        ConfigError: if there are none, only half of them, or others can read the file.
    """
    names = [f"STORMSAIL_{exchange.upper()}_{part}" for part in ("KEY", "SECRET")]
    given = [environment.pop(name, "") for name in names]
    if all(given):
        return _checked(exchange, given[0], given[1], "environment")
    if any(given):
        raise _missing(exchange, f"one of {names[0]} and {names[1]} without the other")
    path = (file or KEYS_FILE).expanduser()
    if path.exists():
        return _from_file(exchange, path)
    if file is not None:
        raise _missing(exchange, f"no file {path}")
    kept = _from_keyring(exchange)
    if kept is not None:
        return kept
    raise _missing(exchange, "none in the environment, in the file or in the keyring")


def read_private(path: Path) -> str:
    """Return the text of a file that its owner alone can read.

    Raises:
        ConfigError: if it cannot be read, others can, or it is no regular file of this user.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:  # of `O_NOFOLLOW`
            raise _exposed(path, "a symbolic link", remedy=_OWN_FILE) from error
        raise ConfigError(
            "secret-missing",
            wrong=f"{path} must be a file of secrets that can be read",
            found=f"{error.strerror}",
            remedy=_OWN_FILE,
        ) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
            raise _exposed(path, "no regular file of this user", remedy=_OWN_FILE)
        if status.st_mode & 0o077:
            raise _exposed(path, f"mode {status.st_mode & 0o777:04o}")
        return os.read(descriptor, _MOST_BYTES).decode(errors="replace")
    finally:
        os.close(descriptor)


def _from_file(exchange: str, path: Path) -> Credentials:
    text = read_private(path)
    try:
        table = tomllib.loads(text).get(exchange)
    except tomllib.TOMLDecodeError:
        # The reason may quote the line, and the line may be the key.
        raise _missing(exchange, f"{path}, which is no TOML") from None
    parts = [table.get(name) for name in ("key", "secret")] if isinstance(table, dict) else []
    if len(parts) == 2 and all(isinstance(part, str) and part for part in parts):
        return _checked(exchange, str(parts[0]), str(parts[1]), str(path))
    raise _missing(exchange, f"{path} without a table [{exchange}] of `key` and `secret`")


def _from_keyring(exchange: str) -> Credentials | None:
    try:
        import keyring
    except ImportError:
        return None
    parts = [keyring.get_password(_SERVICE, f"{exchange}-{part}") for part in ("key", "secret")]
    if not all(parts):
        return None
    return _checked(exchange, str(parts[0]), str(parts[1]), "keyring")


def _checked(exchange: str, key: str, secret: str, source: str) -> Credentials:
    """Return credentials whose key can be a header; a secret may have lines, as PEM files do."""
    odd = next((k for k, sign in enumerate(key, 1) if not "!" <= sign <= "~"), None)
    if odd is not None:
        raise ConfigError(
            "secret-missing",
            wrong=f"the API key of {exchange} must be one word of printable ASCII",
            found=f"{source}: character {odd} of {len(key)} is none, such as a space or a line end",
            remedy="Copy the key again, without what stands around it.",
        )
    return Credentials(Secret(key), Secret(secret), source)


def _missing(exchange: str, found: str) -> ConfigError:
    name = f"STORMSAIL_{exchange.upper()}"
    return ConfigError(
        "secret-missing",
        wrong=f"trading at {exchange} must have an API key and its secret",
        found=found,
        remedy=f"Set {name}_KEY and {name}_SECRET, or write `key` and `secret` under [{exchange}] "
        f"in {KEYS_FILE} and run `chmod 600` on it.",
    )


def _exposed(path: Path, found: str, remedy: str = _CLOSE) -> ConfigError:
    return ConfigError(
        "secret-exposed",
        wrong=f"the secrets in {path} must be readable by their owner alone",
        found=found,
        remedy=remedy,
    )


def encodings(text: str) -> list[str]:
    """Return the forms in which a text is written by accident: plain, base64, hex, quoted, ..."""
    data = text.encode()
    plain = base64.b64encode(data).decode()
    url_safe = base64.urlsafe_b64encode(data).decode()
    forms = [text, plain, plain.rstrip("="), url_safe.rstrip("="), data.hex(), data.hex().upper()]
    forms += [quote(text, safe=""), text[::-1]]
    long = {form for form in forms if len(form) >= _SHORTEST}
    return sorted(long, key=lambda form: (-len(form), form))


class RedactionFilter(logging.Filter):
    """Replaces secrets in log records, whatever form they are written in, by `***`."""

    def __init__(self, *secrets: Secret) -> None:
        super().__init__()
        self._forms = [form for secret in secrets for form in encodings(secret.reveal())]

    def clean(self, text: str) -> str:
        """Return a text without the secrets."""
        for form in self._forms:
            text = text.replace(form, MASK)
        return text

    def filter(self, record: logging.LogRecord) -> bool:
        """Clean a record in place: message, traceback and stack; keep it."""
        try:
            message = record.getMessage()
        except (TypeError, ValueError):
            message = f"{record.msg} {record.args!r}"
        record.msg, record.args = self.clean(message), ()
        if record.exc_info:
            text = record.exc_text or logging.Formatter().formatException(record.exc_info)
            record.exc_text, record.exc_info = self.clean(text), None
        if record.stack_info:
            record.stack_info = self.clean(record.stack_info)
        return True


@contextlib.contextmanager
def redacted_logs(credentials: Credentials) -> Iterator[RedactionFilter]:
    """Keep secrets out of every log record that is made in this context.

    Each record is cleaned where it is made, so that loggers and handlers added later are covered;
    the named loggers and the root's handlers get the filter as well, for records made elsewhere.
    """
    keep = RedactionFilter(credentials.key, credentials.secret)
    make = logging.getLogRecordFactory()

    def made(*args: object, **kwargs: object) -> logging.LogRecord:
        record = make(*args, **kwargs)
        keep.filter(record)
        return record

    places: list[logging.Filterer] = [logging.getLogger(name) for name in LOGGERS]
    places += logging.getLogger().handlers
    for place in places:
        place.addFilter(keep)
    logging.setLogRecordFactory(made)
    try:
        yield keep
    finally:
        logging.setLogRecordFactory(make)
        for place in places:
            place.removeFilter(keep)
