"""Symbol, interval and kind of data from the name of a file."""

import re
from dataclasses import dataclass
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
    r"-(?P<interval>[1-9][0-9]*(?:mo|[smhdwM]))(-(?P<kind>\w+))?"
)
_PERPETUAL = ("PERP", "SWAP")
_DATE = re.compile("[0-9]{6}")
_STORE = re.compile(r"(?P<base>[A-Z0-9]+)-(?P<quote>[A-Z0-9]+)(_(?P<settle>[A-Z0-9]+))?")


@dataclass(frozen=True)
class Named:
    """What a file name says; None where it says nothing."""

    base: str | None = None
    quote: str | None = None
    settle: str | None = None
    interval: Interval | None = None
    kind: Kind = "bars"
    dated: str | None = None
    """Day on which a dated future expires, as the name has it."""

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
    if freqtrade and _is_plain(freqtrade):
        # `BTC_USDT-1h` is spot, `BTC_USDT_USDT-1h-futures` a perpetual.
        return Named(
            freqtrade["base"],
            freqtrade["quote"],
            freqtrade["settle"],
            Interval.parse(freqtrade["interval"]),
            _kind(freqtrade["kind"] or ""),
        )
    folder = _STORE.fullmatch(path.parent.name)
    if folder and _is_plain(folder) and (_interval(stem) or _kind(stem) == "funding"):
        return Named(
            folder["base"], folder["quote"], folder["settle"], _interval(stem), _kind(stem)
        )
    return _read_words(re.split(r"[-_ ]", stem))


def _is_plain(match: re.Match[str]) -> bool:
    """Return whether no part of a pair is really a word on the kind of contract."""
    words = [match["quote"], match["settle"] or "", match.groupdict().get("kind") or ""]
    return not any(word.upper() in _PERPETUAL or _DATE.fullmatch(word) for word in words)


def _read_words(words: list[str]) -> Named:
    upper = [word.upper() for word in words]
    base, quote, used = _pair(upper)
    interval = next((length for length in map(_interval, words[1:]) if length), None)
    kinds = {_kind(word) for word in words[1:]}
    kind: Kind = "other" if "other" in kinds else "funding" if "funding" in kinds else "bars"
    settle = dated = None
    rest = [*upper[: used.start], *upper[used.stop :]]
    if base and any(word in _PERPETUAL for word in rest):
        settle = base if quote == "USD" else quote
    if base and any(_DATE.fullmatch(word) for word in upper[used.stop : used.stop + 1]):
        dated = upper[used.stop]
    return Named(base, quote, settle, interval, kind, dated)


def _pair(words: list[str]) -> tuple[str | None, str | None, range]:
    """Return base, quote and where they are: `BTC`, `USDT` at the start, or else `BTCUSDT`.

    Side by side they count at the start only: in `my_data_BTC_1h`, `DATA` is no currency.
    """
    if len(words) > 1 and words[1] in QUOTES and re.fullmatch("[A-Z0-9]+", words[0]):
        return words[0], words[1], range(2)
    for place, word in enumerate(words):
        pair = split_pair(word)
        if pair:
            return *pair, range(place, place + 1)
    return None, None, range(0)


def _interval(word: str) -> Interval | None:
    return Interval.parse(word) if re.fullmatch(r"[1-9][0-9]{0,3}(mo|[smhdwM])", word) else None


def _kind(word: str) -> Kind:
    if _FUNDING.fullmatch(word):
        return "funding"
    return "other" if _OTHER.fullmatch(word) else "bars"


def resolve_symbol(named: Named, *, symbol: str | None, market: Market | None, place: str) -> str:
    """Return the symbol of a file: what the user says, or else what the name says.

    Raises:
        DataError: if neither says it.
    """
    if named.dated and not symbol:
        raise DataError(
            "data-symbol",
            wrong=f"the symbol of {place} must be known",
            found=f"the name of a future of {named.pair} that ends on a day, `{named.dated}`",
            remedy="State what to store it as, such as `--symbol BTC/USDT:USDT`.",
        )
    resolved = check_symbol(symbol) if symbol else named.symbol(market)
    if resolved is None:
        raise DataError(
            "data-symbol",
            wrong=f"the symbol of {place} must be known",
            found="a name that does not tell it",
            remedy="State it, such as `--symbol BTC/USDT`.",
        )
    return resolved


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
    resolved = interval or named.interval
    if resolved is None:
        raise DataError(
            "data-interval",
            wrong=f"the interval of {place} must be known",
            found="a name that does not tell it",
            remedy="State it, such as `--interval 1h`.",
        )
    return resolved
