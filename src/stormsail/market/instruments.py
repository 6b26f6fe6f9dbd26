"""Instrument terms: what an exchange says about a symbol beside its bars.

Kind, order steps, fees, margin, borrow rates, the times of listing and delisting. A term that
nobody has stated is None; what is used in its place is a default that `market.terms` names.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from stormsail.core.config import Config
from stormsail.core.config.conversions import Time
from stormsail.core.errors import ConfigError, DataError
from stormsail.core.files import documents
from stormsail.core.files.documents import JsonValue
from stormsail.market.bars import check_symbol

Kind = Literal["spot", "margin", "perpetual"]
"""Spot is paid in full; margin may borrow; a perpetual is a linear perpetual future."""

GIVEN = "given"
"""Source of a term that the user stated."""

_FORMAT = "instrument-terms-1"
_SEAL = "seal"

Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Step = Annotated[float, Field(ge=0.0)]
Rate = Annotated[float, Field(ge=0.0)]


class Tier(Config):
    """Maintenance margin of the part of a position's notional above a bound."""

    notional: Annotated[float, Field(ge=0.0)]
    """Bound from which on the rate holds, in quote currency."""

    rate: Share
    """Margin of the part above it, as a share of that part."""


def _tiers(tiers: tuple[Tier, ...]) -> tuple[Tier, ...]:
    if not tiers:
        return tiers
    if tiers[0].notional != 0.0:
        raise ValueError(f"must begin at a notional of 0, not {tiers[0].notional:g}")
    for lower, upper in pairwise(tiers):
        if not (lower.notional < upper.notional and lower.rate <= upper.rate):
            raise ValueError("must rise in notional, and never fall in rate")
    return tiers


class InstrumentTerms(Config):
    """What is known about an instrument; None is not known."""

    kind: Kind | None = None
    """`spot`: long only, paid in full. `margin`: as spot, and what has a borrow rate may be
    borrowed. `perpetual`: linear, with funding. None reads it off the symbol: `BTC/USDT` is spot,
    `BTC/USDT:USDT` a perpetual."""

    lot: Step | None = None
    """Order quantities are multiples of this, in base currency; 0 says that there is no step."""

    tick: Step | None = None
    """Prices are multiples of this, in quote currency; 0 says that there is no step."""

    min_notional: Step | None = None
    """An order worth less than this is refused, in quote currency."""

    maker_fee: Annotated[float, Field(gt=-1.0, lt=1.0)] | None = None
    """Fee of a resting order, as a share of the notional; a rebate is negative. Kept for the
    record: orders here always take."""

    taker_fee: Share | None = None
    """Fee of an order that takes, as a share of the filled notional."""

    max_leverage: Annotated[float, Field(ge=1.0)] | None = None
    """Largest size of a weight that the exchange allows."""

    maintenance: Annotated[tuple[Tier, ...], AfterValidator(_tiers)] = ()
    """Maintenance margin by the position's notional; empty is not known."""

    borrow_rate: Rate | None = None
    """Interest on base currency that is borrowed to be sold short, as a share a year of 365
    days; 0.1 is 10 %."""

    quote_borrow_rate: Rate | None = None
    """Interest on quote currency that is borrowed to buy more than the equity, likewise."""

    listed: Time = None
    """When trading began."""

    delisted: Time = None
    """When trading ended, or will end."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.listed is not None and self.delisted is not None and self.listed >= self.delisted:
            raise ValueError(
                f"`listed` must be before `delisted`, not {self.listed} and {self.delisted}"
            )
        return self

    def known(self) -> dict[str, object]:
        """Return the terms that are stated, by name."""
        named = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: value for name, value in named.items() if value is not None and value != ()}

    def document(self) -> dict[str, JsonValue]:
        """Return the terms that are stated, as plain data."""
        whole = self.model_dump(mode="json")
        return {name: whole[name] for name in self.known()}

    def over(self, other: Self) -> Self:
        """Return these terms, and those of another where these state nothing."""
        return type(self).from_mapping({**other.document(), **self.document()})


@dataclass(frozen=True)
class Instrument:
    """Terms of one symbol as the store keeps them, each with its source."""

    symbol: str
    terms: InstrumentTerms
    sources: Mapping[str, str] = field(default_factory=dict)
    """By term: `given` by the user, or the exchange's id."""

    def __post_init__(self) -> None:
        check_symbol(self.symbol)
        check_kind(self.symbol, self.terms)
        object.__setattr__(self, "sources", dict(self.sources))

    def with_given(self, terms: InstrumentTerms) -> "Instrument":
        """Return the instrument with terms of the user, which stand before all others."""
        sources = {**self.sources, **dict.fromkeys(terms.known(), GIVEN)}
        return Instrument(self.symbol, terms.over(self.terms), sources)

    def with_fetched(self, terms: InstrumentTerms, sources: Mapping[str, str]) -> "Instrument":
        """Return the instrument with terms of an exchange; those that the user gave stay."""
        own = {name: text for name, text in self.sources.items() if text == GIVEN}
        given = {name: value for name, value in self.terms.document().items() if name in own}
        kept = InstrumentTerms.from_mapping(given)
        return Instrument(self.symbol, kept.over(terms), {**sources, **own})

    def encode(self) -> bytes:
        """Return the file: readable JSON, sealed with the SHA-256 of its content."""
        document: dict[str, JsonValue] = {
            "format": _FORMAT,
            "symbol": self.symbol,
            "terms": self.terms.document(),
            "sources": dict(sorted(self.sources.items())),
        }
        return documents.encode_readable({**document, _SEAL: _seal(document)})

    @classmethod
    def decode(cls, data: bytes) -> "Instrument":
        """Return the instrument of a file.

        Raises:
            ValueError: if the text is not one that `encode` wrote.
        """
        document = documents.decode(data)
        if not isinstance(document, dict) or document.get("format") != _FORMAT:
            raise ValueError(f"no document of the format {_FORMAT}")
        content = {name: value for name, value in document.items() if name != _SEAL}
        if document.get(_SEAL) != _seal(content):
            raise ValueError("values that do not fit the hash written with them")
        symbol, terms, sources = (content.get(name) for name in ("symbol", "terms", "sources"))
        if isinstance(symbol, str) and isinstance(terms, dict) and isinstance(sources, dict):
            try:
                read = InstrumentTerms.from_mapping(terms)
            except ConfigError as error:
                raise ValueError(f"terms that this version does not know: {error.found}") from error
            return cls(symbol, read, {name: str(text) for name, text in sources.items()})
        raise ValueError("no symbol, terms and sources")


def kind_of(symbol: str) -> Kind:
    """Return the kind that a symbol is written as; ccxt's grammar, not a guess.

    Raises:
        DataError: if it is settled in another currency than the quote: an inverse or quanto
            contract, whose profit these ledgers would compute wrongly.
    """
    quote, _, settle = check_symbol(symbol).partition("/")[2].partition(":")
    if not settle:
        return "spot"
    if settle == quote:
        return "perpetual"
    raise DataError(
        "data-symbol",
        wrong="a symbol that is traded must be spot, margin or a linear perpetual",
        found=f"`{symbol}`, which is settled in {settle} and not in {quote}",
        remedy="Trade the contract that is settled in its quote currency, or leave it out.",
    )


def check_kind(symbol: str, terms: InstrumentTerms) -> None:
    """Refuse terms whose kind contradicts the symbol, or that do not belong to their kind.

    Raises:
        DataError: if they do.
    """
    if terms.kind is None:
        return
    settled = ":" in symbol
    if settled != (terms.kind == "perpetual"):
        raise DataError(
            "data-symbol",
            wrong=f"the kind of {symbol} must be "
            f"{'`perpetual`' if settled else '`spot` or `margin`'}, as it is written",
            found=f"`{terms.kind}`",
            remedy="Write `BTC/USDT` for spot and margin, and `BTC/USDT:USDT` for the perpetual.",
        )


def read_terms_file(tables: Mapping[str, object], *, source: str) -> dict[str, InstrumentTerms]:
    """Return the terms of a TOML or JSON file, a table for each symbol.

    Raises:
        ConfigError: if a table holds what is no term.
        DataError: if a symbol is written wrongly, or contradicts its kind.
    """
    read = {}
    for symbol, table in tables.items():
        check_symbol(symbol)
        if not isinstance(table, Mapping):
            raise ConfigError(
                "config-value",
                wrong=f"{source} must hold a table of terms for each symbol",
                found=f"`{symbol}` = {table!r}",
                remedy='Write ["BTC/USDT:USDT"] and its terms below, such as lot = 0.001.',
            )
        read[symbol] = InstrumentTerms.from_mapping(table, source=f"{source}, {symbol}")
        check_kind(symbol, read[symbol])
    return read


def _seal(document: Mapping[str, JsonValue]) -> str:
    return hashlib.sha256(documents.encode(dict(document))).hexdigest()
