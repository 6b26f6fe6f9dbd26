"""Exchanges by the name that `--venue` gives them."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from stormsail.core.clock import Clock
    from stormsail.execution.secrets import Credentials
    from stormsail.execution.venue import Venue

Listed = Literal["binance", "binanceusdm"]
"""Exchanges that take real orders."""

Name = Literal[Listed, "loopback"]


def exchange_of(name: str, symbols: tuple[str, ...]) -> str:
    """Return the exchange for some symbols.

    Raises:
        ConfigError: if the kind of the symbols is not traded there.
    """
    from stormsail.core.errors import ConfigError

    perpetual = ":" in symbols[0]
    wanted = "binanceusdm" if perpetual else "binance"
    if name != wanted:
        raise ConfigError(
            "config-inconsistent",
            wrong=f"{symbols[0]} must be traded where it is listed, at `--venue {wanted}`",
            found=f"`--venue {name}`",
            remedy=f"Pass `--venue {wanted}`, or other symbols.",
        )
    return name


def connect(
    name: str, symbols: tuple[str, ...], clock: "Clock", credentials: "Credentials | None"
) -> "Venue":
    """Return an exchange's account, or its market data alone where there are no keys."""
    from stormsail.execution.ccxt_venue import CcxtVenue

    return CcxtVenue(exchange_of(name, symbols), credentials=credentials, clock=clock)


def credentials_of(name: str, keys: Path | None) -> "Credentials":
    """Return the keys of an exchange."""
    import os

    from stormsail.execution.secrets import load_credentials

    return load_credentials(name, environment=os.environ, file=keys)
