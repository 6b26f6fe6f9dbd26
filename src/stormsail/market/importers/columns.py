"""Matching of a source's column names with ours."""

from collections.abc import Mapping, Sequence

from stormsail.core.errors import DataError
from stormsail.market.bars import OPTIONAL, REQUIRED
from stormsail.market.checks.columns import likely

FUNDING_COLUMNS = ("ts", "funding_rate")


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
    matched: dict[str, str] = {}
    for ours in wanted:
        if ours in chosen:
            theirs = [name for name in names if name == chosen[ours]]
        else:
            theirs = likely([name for name in names if name not in chosen.values()], ours)
        if len(theirs) > 1 or (ours in chosen and not theirs):
            raise DataError(
                "data-column",
                wrong=f"{place} must have one column for `{ours}`",
                found=f"{', '.join(theirs) or 'none of that name'} among {', '.join(names)}",
                remedy=f"Name it with `--columns {ours}=NAME`.",
            )
        if theirs:
            matched[ours] = theirs[0]
    return matched


def check_complete(matched: Mapping[str, str], names: Sequence[str], place: str) -> None:
    """Refuse a source in which a required column could not be recognised."""
    missing = [name for name in REQUIRED if name not in matched]
    if missing:
        raise DataError(
            "data-column",
            wrong=f"{place} must have a column for each of {', '.join(REQUIRED)}",
            found=f"{', '.join(names) or 'no column'}; {', '.join(missing)} missing",
            remedy="Name them with `--columns`, such as `--columns ts=time,volume=amount`.",
        )
