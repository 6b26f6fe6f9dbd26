"""Times of an imported source as UTC milliseconds, with one unit for all rows."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stormsail.core.errors import DataError
from stormsail.market.checks.stamps import BINANCE_SWITCH_MS, UNITS, unit_of

TimeUnit = Literal["s", "ms", "us", "ns", "iso"]

_MS, _US = UNITS.index("ms"), UNITS.index("us")
_PER_MS = {"s": 1e-3, "ms": 1.0, "us": 1e3, "ns": 1e6}
_LAST_MS = 4_102_444_800_000  # 2100-01-01: no bar is that new


@dataclass(frozen=True)
class Times:
    """Times in milliseconds, and the unit that they had."""

    column: pa.ChunkedArray
    unit: str
    notes: tuple[str, ...] = ()


def to_milliseconds(
    column: pa.ChunkedArray, *, unit: TimeUnit | None, place: str, binance_spot: bool = False
) -> Times:
    """Return times as int64 milliseconds; a missing time stays missing.

    Args:
        column: numbers, timestamps or ISO 8601 text.
        unit: what the numbers count, if the user states it; else their size decides.
        place: the file, for messages.
        binance_spot: accept Binance's own change from milliseconds to microseconds.

    Raises:
        DataError: if units are mixed, a zone is missing, or a time is no whole millisecond.
    """
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        if unit == "iso":
            raise _uncertain(place, "be ISO 8601 text", f"numbers ({kind})")
        return _from_numbers(column, unit, place, binance_spot=binance_spot)
    if pa.types.is_null(kind):
        return Times(column.cast(pa.int64()), unit or "ms")
    if unit not in (None, "iso"):
        raise _uncertain(place, f"be numbers that count {unit}", f"a column of type {kind}")
    return _from_stamps(column, place, assume_utc=unit == "iso")


def _uncertain(place: str, must: str, found: str) -> DataError:
    return DataError(
        "data-time-unit",
        wrong=f"the times of {place} must {must}",
        found=found,
        remedy="Split the file, mend the source, or state the unit with `--time-unit`.",
    )


def _from_numbers(
    column: pa.ChunkedArray, unit: TimeUnit | None, place: str, *, binance_spot: bool
) -> Times:
    if unit in (None, "ms") and _are_milliseconds(column):
        return Times(column, "ms")
    # Filled with zeros, integers stay integers: float64 would round nanoseconds.
    values = column.fill_null(0).to_numpy()
    valid = column.is_valid().to_numpy()
    if values.dtype.kind == "f":
        valid = valid & np.isfinite(values)
        values = np.where(valid, values, 0.0)
    size = np.abs(values.astype(np.float64))
    units = unit_of(size) if unit is None else np.full(len(size), UNITS.index(unit), np.int8)
    used = np.unique(units[valid])
    notes: tuple[str, ...] = ()
    if len(used) > 1:
        if not (binance_spot and _is_switch(values, units, valid)):
            raise _mixture(values, units, valid, place)
        notes = (f"{place}: ms before 2025-01-01 and us from then on, as Binance switched",)
    result = _scaled(values, units, valid, place)
    name = " and ".join(UNITS[index] for index in used) or "ms"
    return Times(pa.chunked_array([pa.array(result, mask=~valid)]), name, notes)


def _are_milliseconds(column: pa.ChunkedArray) -> bool:
    """Return whether all are whole numbers of the size of milliseconds: nothing is to be done."""
    if column.type != pa.int64() or column.null_count or not len(column):
        return False
    ends = pc.min_max(column).as_py()
    sizes = unit_of(np.array([ends["min"], ends["max"]], dtype=np.float64))
    return ends["min"] > 0 and ends["max"] <= _LAST_MS and bool((sizes == _MS).all())


def _is_switch(values: NDArray[Any], units: NDArray[np.int8], valid: NDArray[np.bool_]) -> bool:
    old, new = values[valid & (units == _MS)], values[valid & (units == _US)]
    only = len(old) + len(new) == int(valid.sum())
    return (
        only
        and bool((old < BINANCE_SWITCH_MS).all())
        and bool((new >= BINANCE_SWITCH_MS * 1000).all())
    )


def _mixture(
    values: NDArray[Any], units: NDArray[np.int8], valid: NDArray[np.bool_], place: str
) -> DataError:
    first = []
    for unit in np.unique(units[valid]):
        row = int(np.flatnonzero(valid & (units == unit))[0])
        first.append((row, f"{UNITS[unit]} in row {row} ({values[row]})"))
    return _uncertain(place, "have one unit", " and ".join(text for _, text in sorted(first)))


def _scaled(
    values: NDArray[Any], units: NDArray[np.int8], valid: NDArray[np.bool_], place: str
) -> NDArray[np.int64]:
    result = np.zeros(len(values), dtype=np.int64)
    for unit in np.unique(units[valid]):
        rows = np.flatnonzero(valid & (units == unit))
        chosen = values[rows]
        milliseconds, whole = _whole_milliseconds(chosen, UNITS[unit])
        if not whole.all():
            worst = int(np.argmin(whole))
            raise _uncertain(
                place,
                "be whole milliseconds before the year 2100",
                f"{chosen[worst]} {UNITS[unit]} in row {rows[worst]}",
            )
        result[rows] = milliseconds
    return result


def _whole_milliseconds(
    values: NDArray[Any], unit: str
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return milliseconds, and where they are exactly the time of the source."""
    early = np.abs(values.astype(np.float64)) <= _LAST_MS * _PER_MS[unit]
    safe = np.where(early, values, 0)
    if unit == "s":
        scaled = np.round(safe * 1000)
        whole = np.abs(safe * 1000 - scaled) < 1e-3  # float64 seconds are good to a microsecond
    else:
        scaled = safe // int(_PER_MS[unit])
        whole = scaled * int(_PER_MS[unit]) == safe
    return scaled.astype(np.int64), early & whole


def _from_stamps(column: pa.ChunkedArray, place: str, *, assume_utc: bool) -> Times:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = _parsed(column, place)
    elif pa.types.is_date(kind):
        column = column.cast(pa.timestamp("ms"))
    elif not pa.types.is_timestamp(kind):
        raise DataError(
            "data-type",
            wrong=f"the times of {place} must be numbers, timestamps or ISO 8601 text",
            found=f"a column of type {kind}",
            remedy="Name the column that holds the open time with `--columns ts=NAME`.",
        )
    notes: tuple[str, ...] = ()
    if column.type.tz is None:
        if not assume_utc:
            first = next((str(time) for time in column.slice(0, 1).to_pylist()), "no row")
            raise DataError(
                "data-time-zone",
                wrong=f"the times of {place} must say in which zone they are",
                found=f"`{first}` without one",
                remedy="Import it with `--time-unit iso` to read such times as UTC, if that is "
                "what they are.",
            )
        notes = (f"{place}: times without a zone read as UTC, as asked",)
    try:
        return Times(column.cast(pa.timestamp("ms", column.type.tz)).cast(pa.int64()), "iso", notes)
    except pa.ArrowException as error:
        raise _uncertain(
            place, "be whole milliseconds", str(error).split("\n")[0].rstrip(".?! ")
        ) from error


def _parsed(column: pa.ChunkedArray, place: str) -> pa.ChunkedArray:
    """Return ISO 8601 text as timestamps: with a zone in every row, or in none."""
    try:
        return column.cast(pa.timestamp("us", "UTC"))
    except pa.ArrowException as zoned:
        try:
            return column.cast(pa.timestamp("us"))
        except pa.ArrowException as plain:
            mixed = "zone offset" in str(zoned) and "zone offset" in str(plain)
            problem = str(plain).split("\n")[0].rstrip(".?! ")
            raise DataError(
                "data-type",
                wrong=f"the times of {place} must be numbers, timestamps or ISO 8601 text",
                found=f"rows with and without a zone: {problem}" if mixed else problem,
                remedy="Mend the source, or name the right column with `--columns ts=NAME`.",
            ) from plain
