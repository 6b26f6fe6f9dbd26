"""Which column of a source holds what."""

from collections.abc import Mapping, Sequence

from stormsail.core.errors import DataError
from stormsail.market.bars import OPTIONAL, REQUIRED

BINANCE = (
    "ts",
    "open",
    "high",
    "low",
    "close",
    "volume",
    "close_time",
    "quote_volume",
    "trades",
    "taker_buy_base",
    "taker_buy_quote",
    "ignore",
)
"""Columns of Binance's kline dumps, in their order; old ones have no header."""

FUNDING_COLUMNS = ("ts", "funding_rate")

_ALIASES: Mapping[str, tuple[str, ...]] = {
    "ts": (
        *("ts", "timestamp", "time", "date", "datetime", "open_time", "opentime", "unix"),
        *("calc_time", "funding_time", "fundingtime", "__index_level_0__"),
    ),
    "open": ("open", "o"),
    "high": ("high", "h"),
    "low": ("low", "l"),
    "close": ("close", "c"),
    "volume": ("volume", "v", "vol"),
    "quote_volume": ("quote_volume", "quote_asset_volume"),
    "trades": ("trades", "count", "number_of_trades", "trade_count"),
    "taker_buy_base": (
        *("taker_buy_base", "taker_buy_volume"),
        *("taker_buy_base_volume", "taker_buy_base_asset_volume"),
    ),
    "taker_buy_quote": (
        *("taker_buy_quote", "taker_buy_quote_volume", "taker_buy_quote_asset_volume"),
    ),
    "funding_rate": ("funding_rate", "fundingrate", "last_funding_rate"),
}


def tidy(name: str) -> str:
    """Return a column name in lower case with underscores."""
    return "_".join(name.strip().strip("\"'").lower().replace("-", "_").split())


def is_binance(names: Sequence[str]) -> bool:
    """Return whether a header is that of Binance's kline dumps."""
    found = [tidy(name) for name in names]
    return len(found) == len(BINANCE) and (found[0], found[6]) == ("open_time", "close_time")


def parse_columns(text: str) -> dict[str, str]:
    """Return the mapping that a user wrote as `ts=time,open=o`.

    Raises:
        DataError: if a part is no pair, or names a column that bars do not have.
    """
    known = (*REQUIRED, *OPTIONAL, "funding_rate")
    pairs = [part.partition("=") for part in text.split(",")]
    wrong = ["".join(pair) for pair in pairs if pair[0].strip() not in known or not pair[2].strip()]
    if wrong:
        raise DataError(
            "data-column",
            wrong=f"columns must be named as OURS=THEIRS, with OURS one of {', '.join(known)}",
            found=f"`{wrong[0]}`",
            remedy="Write it as `--columns ts=time,open=o`.",
        )
    return {ours.strip(): theirs.strip() for ours, _, theirs in pairs}


def match(
    names: Sequence[str], wanted: Sequence[str], chosen: Mapping[str, str], *, place: str
) -> dict[str, str]:
    """Return which source column each of our columns is, as far as there is one.

    Raises:
        DataError: if a chosen column is not there, or two columns could be the same one of ours.
    """
    found: dict[str, str] = {}
    for ours in wanted:
        if ours in chosen:
            theirs = [name for name in names if name == chosen[ours]]
        else:
            free = [name for name in names if name not in chosen.values()]
            theirs = [name for name in free if tidy(name) in _ALIASES[ours]]
            # Our own name, written exactly, outranks names that merely mean the same.
            theirs = [name for name in theirs if name == ours] or theirs
        if len(theirs) > 1 or (ours in chosen and not theirs):
            raise DataError(
                "data-column",
                wrong=f"{place} must have one column for `{ours}`",
                found=f"{', '.join(theirs) or 'none of that name'} among {', '.join(names)}",
                remedy=f"Name it with `--columns {ours}=NAME`.",
            )
        if theirs:
            found[ours] = theirs[0]
    return found


def check_complete(found: Mapping[str, str], names: Sequence[str], place: str) -> None:
    """Refuse a source in which a required column could not be recognised.

    Raises:
        DataError: naming what is missing.
    """
    missing = [name for name in REQUIRED if name not in found]
    if missing:
        raise DataError(
            "data-column",
            wrong=f"{place} must have a column for each of {', '.join(REQUIRED)}",
            found=f"{', '.join(names) or 'no column'}; {', '.join(missing)} missing",
            remedy="Name them with `--columns`, such as `--columns ts=time,volume=amount`.",
        )
