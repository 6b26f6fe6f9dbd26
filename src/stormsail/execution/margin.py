"""Leverage and margin mode of an account: read before the first order, set or refused.

An exchange that allows less leverage than the agent uses refuses its orders one by one; one that
margins positions otherwise than the operator believes liquidates them otherwise. So a start reads
both, compares them with the settings, and goes on only where they agree.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal

from stormsail.core.errors import ConfigError, VenueError
from stormsail.execution.config import Margin
from stormsail.execution.venue import MarginTerms, Venue


def agreed_margin(
    venue: Venue, symbols: Sequence[str], config: Margin, max_leverage: float
) -> Mapping[str, MarginTerms]:
    """Return the margin of each symbol once it is what the operator asks for.

    Args:
        venue: whose account.
        symbols: that are traded.
        config: what the operator asks for, and whether it may be set.
        max_leverage: of the order gate; the exchange must allow as much.

    Raises:
        ConfigError: `account-margin` if they differ and must not, or cannot, be set.
        VenueError: if the venue does not say.
    """
    if not venue.capabilities.leverage:
        return {}
    found = venue.margin_terms(symbols)
    if config.change and any(wanted(own, config) != own for own in found.values()):
        for symbol, own in found.items():
            _set(venue, symbol, own, wanted(own, config))
        found = venue.margin_terms(symbols)
    for symbol, own in found.items():
        if wanted(own, config) != own:
            raise _differs(symbol, wanted(own, config), _words(own))
        if own.leverage < Decimal(repr(max_leverage)):
            raise ConfigError(
                "account-margin",
                wrong=f"the exchange must allow {symbol} a leverage of `limits.max_leverage`, "
                f"{max_leverage:g}",
                found=_words(own),
                remedy="Raise it at the exchange or with `margin.leverage` and `margin.change`, or "
                "lower `limits.max_leverage`.",
            )
    return found


def wanted(found: MarginTerms, config: Margin) -> MarginTerms:
    """Return what the operator asks for; what is left open is as it was found."""
    leverage = found.leverage if config.leverage is None else Decimal(config.leverage)
    return MarginTerms(leverage, config.mode or found.mode)


def _set(venue: Venue, symbol: str, found: MarginTerms, asked: MarginTerms) -> None:
    try:
        if asked.mode != found.mode:
            venue.set_margin_mode(symbol, asked.mode)
        if asked.leverage != found.leverage:
            venue.set_leverage(symbol, int(asked.leverage))
    except VenueError as error:
        if error.code != "venue-refused":
            raise
        raise _differs(symbol, asked, f"{_words(found)}, and {error.found}") from error


def _differs(symbol: str, asked: MarginTerms, found: str) -> ConfigError:
    return ConfigError(
        "account-margin",
        wrong=f"the margin of {symbol} at the exchange must be {_words(asked)}",
        found=found,
        remedy="Set it there, without a position or an order of the symbol, or pass --set "
        "margin.change=true.",
    )


def _words(terms: MarginTerms) -> str:
    return f"{terms.leverage:f} times {terms.mode}"
