"""Start an episode at a chosen symbol and bar: `reset(options={...})` of an environment."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stormsail.core.clock import iso
from stormsail.core.errors import ArgumentError, ChoiceError, DtypeError, RangeError, ShapeError
from stormsail.core.errors import nearest as nearest_name
from stormsail.market.panel import Panel
from stormsail.market.simulator import Simulator, State

OPTIONS = ("symbol", "row", "time")
"""Symbol as a name or a column; row of the first decision's bar, or the time at which it opens."""


def chosen_start(
    simulator: Simulator, panel: Panel, options: Mapping[str, Any]
) -> tuple[State, Tensor]:
    """Start one episode in each environment where the options say, at the config's own costs.

    Each option is one value for all environments or a list with one for each. A start in the
    first bars of a symbol is allowed: features that need more of the past are 0 there.

    Raises:
        ChoiceError: if an option or a symbol is unknown.
        ArgumentError: if an option is missing, or row and time are both given.
        RangeError: if there is no such bar, or it lies outside the span.
        DtypeError: if a value is of another type.
        ShapeError: if a list does not have one value for each environment.
    """
    _check_names(options, panel)
    batch = simulator.batch
    columns = _each("symbol", options.get("symbol", 0), batch, lambda value: _column(panel, value))
    if "row" in options:
        rows = _each("row", options["row"], batch, lambda value: _whole("row", value))
    else:
        rows = _each("time", options["time"], batch, lambda value: _row_at(panel, value))
    symbol, row = torch.tensor(columns), torch.tensor(rows)
    return simulator.place(symbol, row)


def _check_names(options: Mapping[str, Any], panel: Panel) -> None:
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        near = nearest_name(unknown[0], OPTIONS)
        raise ChoiceError(
            wrong=f"options of `reset` must be among {', '.join(f'`{name}`' for name in OPTIONS)}",
            found=f"`{unknown[0]}`",
            remedy=f"Did you mean `{near}`?" if near else "Leave it out.",
        )
    if ("row" in options) == ("time" in options):
        both = "row" in options
        raise ArgumentError(
            "config-inconsistent" if both else "missing-argument",
            wrong="a chosen start must have a `row` or a `time`",
            found="both" if both else "neither",
            remedy="Pass one of them, or no options at all for a random start.",
        )
    if "symbol" not in options and len(panel.symbols) > 1:
        raise ArgumentError(
            "missing-argument",
            wrong="a chosen start must name its `symbol` where there are several",
            found=f"none, and a panel of {', '.join(panel.symbols)}",
            remedy=f"Pass for example `{panel.symbols[0]}`.",
        )


def _each(name: str, value: object, batch: int, read: Callable[[object], int]) -> list[int]:
    """Return one number for each environment."""
    if not isinstance(value, list | tuple | np.ndarray):
        return [read(value)] * batch
    if len(value) != batch:
        raise ShapeError(
            wrong=f"`{name}` must be one value, or one for each of {batch} environments",
            found=f"{len(value)} values",
            remedy="Pass one value to start all environments alike.",
        )
    return [read(item) for item in value]


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise DtypeError(
            wrong=f"`{name}` must be a whole number",
            found=repr(value),
            remedy="Rows and columns of the panel are counted from 0.",
        )
    return int(value)


def _column(panel: Panel, value: object) -> int:
    return panel.index(value) if isinstance(value, str) else _whole("symbol", value)


def _row_at(panel: Panel, value: object) -> int:
    """Return the row of the bar that opens at a time."""
    time_ms = _milliseconds(value)
    row = int(torch.searchsorted(panel.ts, time_ms))
    if row == len(panel.ts) or int(panel.ts[row]) != time_ms:
        raise RangeError(
            wrong=f"a bar must open at `time`, in {iso(int(panel.ts[0]))} to "
            f"{iso(int(panel.ts[-1]))} every {panel.interval}",
            found=iso(time_ms),
            remedy="Pass the time at which the first decision's bar opens.",
        )
    return row


def _milliseconds(value: object) -> int:
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    time: object = value
    if isinstance(value, str):
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            time = None
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise DtypeError(
            wrong="`time` must be UTC milliseconds, or a date and time with its zone",
            found=repr(value),
            remedy="Write for example 2024-01-01T00:00:00Z.",
        )
    return round(time.timestamp() * 1000)
