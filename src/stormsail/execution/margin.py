"""Leverage and margin mode of an account: read before the first order, set or refused.

An exchange that allows less leverage than the agent uses refuses its orders one by one; one that
margins positions otherwise than the operator believes liquidates them otherwise. So a start reads
both, compares them with the settings, and goes on only where they agree.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal

from stormsail.core.errors import ConfigError, VenueError
from stormsail.core.files.documents import JsonValue
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
        ConfigError: `account-margin` if they differ and must not, or cannot, be set; or if the
            account is in hedge mode.
        VenueError: if the venue does not say.
    """
    if not venue.capabilities.leverage:
        return {}
    if not venue.one_way():
        raise ConfigError(
            "account-margin",
            wrong="the account at the exchange must be in one-way mode, one position for a symbol",
            found="hedge mode",
            remedy="Change the position mode at the exchange, without a position or an open order.",
        )
    present = venue.margin_terms(symbols)
    if config.change and any(wanted(own, config) != own for own in present.values()):
        for symbol, own in present.items():
            _set(venue, symbol, own, wanted(own, config))
        present = venue.margin_terms(symbols)
    for symbol, own in present.items():
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
    return present


def wanted(present: MarginTerms, config: Margin) -> MarginTerms:
    """Return what the operator asks for; what is left open stays as it is."""
    leverage = present.leverage if config.leverage is None else Decimal(config.leverage)
    return MarginTerms(leverage, config.mode or present.mode)


def margin_document(terms: Mapping[str, MarginTerms]) -> dict[str, JsonValue]:
    """Return the margin of each symbol as plain numbers and words."""
    return {
        symbol: {"leverage": float(own.leverage), "mode": own.mode} for symbol, own in terms.items()
    }


def _set(venue: Venue, symbol: str, present: MarginTerms, target: MarginTerms) -> None:
    try:
        if target.mode != present.mode:
            venue.set_margin_mode(symbol, target.mode)
        if target.leverage != present.leverage:
            venue.set_leverage(symbol, int(target.leverage))
    except VenueError as error:
        if error.code != "venue-refused":
            raise
        raise _differs(symbol, target, f"{_words(present)}, and {error.found}") from error


def _differs(symbol: str, target: MarginTerms, present: str) -> ConfigError:
    return ConfigError(
        "account-margin",
        wrong=f"the margin of {symbol} at the exchange must be {_words(target)}",
        found=present,
        remedy="Set it there, without a position or an order of the symbol, or pass --set "
        "margin.change=true.",
    )


def _words(terms: MarginTerms) -> str:
    return f"{terms.leverage:f} times {terms.mode}"
