"""What the name of a data file says about its contents."""

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from typing import Literal

from stormsail.core.errors import DataError
from stormsail.market.bars import check_symbol
from stormsail.market.interval import Interval

Kind = Literal["bars", "funding", "other"]
Market = Literal["spot", "perp"]

# Longest first, so that BTCFDUSD is BTC/FDUSD and not BTCFD/USD.
QUOTES = (
    *("FDUSD", "BUSD", "TUSD", "USD1", "USDC", "USDE", "USDP", "USDT"),
    *("AUD", "BNB", "BRL", "BTC", "DAI", "ETH", "EUR", "GBP", "JPY", "TRY", "USD"),
)
"""Quote currencies that a name without a separator may end in."""

_OTHER = re.compile(
    r"mark|index|premiumindex\w*|aggtrades|trades|bookdepth|bookticker|metrics", re.IGNORECASE
)
_FUNDING = re.compile(r"funding|fundingrate|funding_rate", re.IGNORECASE)
_FREQTRADE = re.compile(
    r"(?P<base>[A-Z0-9]+)_(?P<quote>[A-Z0-9]+)(_(?P<settle>[A-Z0-9]+))?"
    r"-(?P<interval>[1-9][0-9]*[mhdw])(-(?P<kind>\w+))?"
)
_STORE = re.compile(r"(?P<base>[A-Z0-9]+)-(?P<quote>[A-Z0-9]+)(_(?P<settle>[A-Z0-9]+))?")


@dataclass(frozen=True)
class Named:
    """What a name tells; None where it is silent."""

    base: str | None = None
    quote: str | None = None
    settle: str | None = None
    interval: Interval | None = None
    kind: Kind = "bars"

    @property
    def pair(self) -> str | None:
        """`BASE/QUOTE`, without what it settles in."""
        return f"{self.base}/{self.quote}" if self.base else None

    def symbol(self, market: Market | None) -> str | None:
        """Return the ccxt symbol; the market decides where the name does not.

        Raises:
            DataError: if name and market contradict each other.
        """
        if self.pair is None:
            return None
        perpetual = self.settle is not None or self.kind == "funding"
        if perpetual and market == "spot":
            raise DataError(
                "data-symbol",
                wrong="a file of the spot market must not be named as one of a perpetual",
                found=f"`--market spot` and {self.pair}, {self.kind}",
                remedy="Leave `--market` out, or write `--market perp`.",
            )
        settle = self.settle or self.quote
        return f"{self.pair}:{settle}" if perpetual or market == "perp" else self.pair


def split_pair(text: str) -> tuple[str, str] | None:
    """Return base and quote of a pair written without a separator, or None.

    >>> split_pair("ETHBTC")
    ('ETH', 'BTC')
    """
    for quote in QUOTES:
        if text.endswith(quote) and re.fullmatch("[A-Z0-9]+", text.removesuffix(quote)):
            return text.removesuffix(quote), quote
    return None


def read_name(path: PurePath) -> Named:
    """Return what the name says: Binance's, freqtrade's, the store's, or something like them."""
    stem = path.name.split(".")[0]
    freqtrade = _FREQTRADE.fullmatch(stem)
    if freqtrade:
        # `BTC_USDT-1h` is spot, `BTC_USDT_USDT-1h-futures` a perpetual.
        return Named(
            freqtrade["base"],
            freqtrade["quote"],
            freqtrade["settle"],
            Interval.parse(freqtrade["interval"]),
            _kind(freqtrade["kind"] or ""),
        )
    folder = _STORE.fullmatch(path.parent.name)
    if folder and (_interval(stem) or _kind(stem) == "funding"):
        return Named(
            folder["base"], folder["quote"], folder["settle"], _interval(stem), _kind(stem)
        )
    words = re.split(r"[-_ ]", stem)
    base, quote = _pair([word.upper() for word in words])
    interval = next((found for found in map(_interval, words[1:]) if found), None)
    kinds = {_kind(word) for word in words[1:]}
    kind: Kind = "other" if "other" in kinds else "funding" if "funding" in kinds else "bars"
    return Named(base, quote, None, interval, kind)


def _pair(words: list[str]) -> tuple[str, str] | tuple[None, None]:
    """Return base and quote from `BTC`, `USDT` side by side, or else from `BTCUSDT`."""
    for base, quote in pairwise(words):
        if quote in QUOTES and re.fullmatch("[A-Z0-9]+", base):
            return base, quote
    return next((pair for pair in map(split_pair, words) if pair), (None, None))


def _interval(word: str) -> Interval | None:
    return Interval.parse(word) if re.fullmatch(r"[1-9][0-9]{0,3}[mhdw]", word) else None


def _kind(word: str) -> Kind:
    if _FUNDING.fullmatch(word):
        return "funding"
    return "other" if _OTHER.fullmatch(word) else "bars"


def resolve_symbol(named: Named, *, symbol: str | None, market: Market | None, place: str) -> str:
    """Return the symbol of a file: what the user says, or else what the name says.

    Raises:
        DataError: if neither says it.
    """
    found = check_symbol(symbol) if symbol else named.symbol(market)
    if found is None:
        raise DataError(
            "data-symbol",
            wrong=f"the symbol of {place} must be known",
            found="a name that does not tell it",
            remedy="State it, such as `--symbol BTC/USDT`.",
        )
    return found


def resolve_interval(named: Named, *, interval: Interval | None, place: str) -> Interval:
    """Return the interval of a file: what the user says, or else what the name says.

    Raises:
        DataError: if neither says it, or they contradict each other.
    """
    if interval and named.interval and interval != named.interval:
        raise DataError(
            "data-interval",
            wrong=f"the interval of {place} must be the one in its name",
            found=f"`{interval}`",
            remedy=f"Leave it out; to get longer bars, write `--resample {interval}`.",
        )
    found = interval or named.interval
    if found is None:
        raise DataError(
            "data-interval",
            wrong=f"the interval of {place} must be known",
            found="a name that does not tell it",
            remedy="State it, such as `--interval 1h`.",
        )
    return found
