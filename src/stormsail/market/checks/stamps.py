"""Reading of timestamps: numbers in any unit, ISO text or typed columns as UTC milliseconds."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

UNITS = ("s", "ms", "us", "ns")
MILLISECONDS = UNITS.index("ms")
TYPED = -1
"""Unit of times whose type says what they are."""

BINANCE_SWITCH_MS = 1_735_689_600_000
"""2025-01-01: from here on Binance writes its spot dumps in microseconds."""

_BOUNDS = (1e11, 1e14, 1e17)
"""Below 1e11 a number is seconds (until the year 5138), below 1e14 milliseconds (from 1973 to
5138), below 1e17 microseconds, above it nanoseconds: the ranges of market data never overlap."""

_ISO = (
    r"^\s*(?P<day>\d{4}-\d{2}-\d{2})(?:[T ](?P<minute>\d{2}:\d{2})(?::(?P<second>\d{2})"
    r"(?:\.(?P<fraction>\d{1,9}))?)?)?\s*(?P<zone>Z|z|UTC|[+-]\d{2}:?\d{2})?\s*$"
)
_LIMIT_MS = 9_000_000_000_000_000  # beyond it, arithmetic on times would overflow


@dataclass(frozen=True)
class Stamps:
    """Times of a table's rows.

    Args:
        ms: milliseconds, 0 where there is no time.
        valid: where there is one.
        unit: index into `UNITS` for each row, or `TYPED`.
        naive: times are written without a zone.
        leap: rows that are written with a second 60, None if there are none.
        text: rows with something that is no time, None if there are none.
        missing: rows with nothing, None if there are none.
    """

    ms: NDArray[np.int64]
    valid: NDArray[np.bool_]
    unit: NDArray[np.int8]
    naive: bool = False
    leap: NDArray[np.bool_] | None = None
    text: NDArray[np.bool_] | None = None
    missing: NDArray[np.bool_] | None = None


def read_stamps(column: pa.Array) -> Stamps:
    """Return the times of a column of timestamps, dates, numbers or text."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return _typed(column, naive=kind.tz is None)
    if pa.types.is_date(kind):
        return _typed(column.cast(pa.timestamp("ms")), naive=True)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return _numeric(column)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _written(column)
    nulls, none = _mask(column.is_null()), np.zeros(len(column), bool)
    return Stamps(none.astype(np.int64), none, none.astype(np.int8), text=~nulls, missing=nulls)


def unit_of(number: NDArray[np.float64]) -> NDArray[np.int8]:
    """Return the index into `UNITS` that a time must have, by its size alone."""
    return np.searchsorted(np.array(_BOUNDS), np.abs(number), side="right").astype(np.int8)


def _typed(column: pa.Array, *, naive: bool) -> Stamps:
    ms = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    valid = ~_mask(ms.is_null())
    numbers = np.asarray(ms.fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)
    missing = None if valid.all() else ~valid
    unit = np.full(len(numbers), TYPED, np.int8)
    return Stamps(numbers, valid, unit, naive=naive, missing=missing)


def _numeric(column: pa.Array) -> Stamps:
    """Return times from whole or broken numbers, each converted by its own unit."""
    missing = _mask(column.is_null())
    if pa.types.is_integer(column.type) and column.type != pa.uint64():
        filled = column.fill_null(0) if column.null_count else column  # filling copies
        whole = np.asarray(filled.to_numpy(zero_copy_only=False), dtype=np.int64)
        return _stamps(*_from_whole(whole), ~missing & (whole != np.iinfo(np.int64).min), missing)
    number = np.asarray(
        column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64
    )
    missing = np.isnan(number)
    valid = np.isfinite(number) & (np.abs(number) < 9e18)
    number = np.where(valid, number, 0.0)
    unit = unit_of(number)
    factor = np.array([1e3, 1.0, 1e-3, 1e-6])[unit]
    return _stamps(np.floor(number * factor + 1e-6).astype(np.int64), unit, valid, missing)


def _from_whole(whole: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
    low, high = (int(whole.min()), int(whole.max())) if len(whole) else (0, 0)
    if _BOUNDS[0] <= low and high < _BOUNDS[1]:  # the usual case needs no pass over the rows
        return whole, np.full(len(whole), MILLISECONDS, np.int8)
    unit = unit_of(whole.astype(np.float64))
    ms = np.where(unit == UNITS.index("s"), whole * 1000, whole)
    ms = np.where(unit == UNITS.index("us"), whole // 1000, ms)
    return np.where(unit == UNITS.index("ns"), whole // 1_000_000, ms), unit


def _stamps(
    ms: NDArray[np.int64],
    unit: NDArray[np.int8],
    valid: NDArray[np.bool_],
    missing: NDArray[np.bool_],
) -> Stamps:
    valid = valid & (np.abs(ms) < _LIMIT_MS)
    text = ~valid & ~missing
    return Stamps(
        np.where(valid, ms, 0) if not valid.all() else ms,
        valid,
        np.asarray(unit, np.int8),
        text=text if text.any() else None,
        missing=missing if missing.any() else None,
    )


def _written(column: pa.Array) -> Stamps:
    """Return times from text: numbers or ISO 8601, also both in one column."""
    for kind in (pa.int64(), pa.float64()):
        try:
            return _numeric(column.cast(kind))
        except pa.ArrowInvalid:
            continue
    digits = _mask(
        pc.match_substring_regex(column, r"^\s*[-+]?\d{1,18}(\.\d+)?\s*$").fill_null(
            fill_value=False
        )
    )
    numbers = pc.if_else(pa.array(digits), column, pa.scalar(None, column.type))
    counted = _numeric(pc.utf8_trim_whitespace(numbers).cast(pa.float64()))
    ms, spelled, naive, leap = _iso(column)
    valid = counted.valid | spelled
    missing = _mask(column.is_null())
    text = ~valid & ~missing
    return Stamps(
        np.where(spelled, ms, counted.ms),
        valid,
        np.where(spelled, TYPED, counted.unit).astype(np.int8),
        naive=naive,
        leap=leap if leap.any() else None,
        text=text if text.any() else None,
        missing=missing if missing.any() else None,
    )


def _iso(
    column: pa.Array,
) -> tuple[NDArray[np.int64], NDArray[np.bool_], bool, NDArray[np.bool_]]:
    """Return milliseconds, where they could be read, whether zones lack, and leap seconds."""
    parts = pc.extract_regex(column, pattern=_ISO)
    day, minute, second, fraction, zone = (
        pc.struct_field(parts, index).fill_null("") for index in range(5)
    )
    leap = _mask(pc.equal(second, "60"))
    second = pc.if_else(pa.array(leap), "59", second)
    clock = pc.binary_join_element_wise(
        pc.if_else(pc.equal(minute, ""), "00:00", minute),
        pc.if_else(pc.equal(second, ""), "00", second),
        ":",
    )
    text = pc.binary_join_element_wise(day, clock, " ")
    stamp = pc.strptime(text, format="%Y-%m-%d %H:%M:%S", unit="s", error_is_null=True)
    good = ~_mask(stamp.is_null())
    ms = np.asarray(stamp.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)) * 1000
    thousandths = pc.utf8_slice_codeunits(pc.utf8_rpad(fraction, 3, "0"), 0, 3)
    ms = ms + np.asarray(thousandths.cast(pa.int64()).to_numpy(zero_copy_only=False))
    naive = bool((good & _mask(pc.equal(zone, ""))).any())
    return ms - _offset(zone) + leap * 1000, good, naive, leap


def _offset(zone: pa.Array) -> NDArray[np.int64]:
    """Return what a zone like `+02:00` is ahead of UTC, in milliseconds."""
    digits = pc.replace_substring(pc.utf8_trim(zone, "ZzUTC"), ":", "")
    number = pc.utf8_trim(pc.if_else(pc.equal(digits, ""), "0", digits), "+-").cast(pa.int64())
    hours, minutes = np.divmod(np.asarray(number.to_numpy(zero_copy_only=False)), 100)
    sign = np.where(_mask(pc.starts_with(zone, "-")), -1, 1)
    return np.asarray(sign * (hours * 60 + minutes) * 60_000, dtype=np.int64)


def _mask(array: pa.Array) -> NDArray[np.bool_]:
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=bool)
