"""Results as tables: pandas frames for a notebook, CSV files for everything else.

`Frames` is what `Backtest.frames`, `Validation.frames` and, of a saved folder, `Result.frames`
give. Tables are made with pyarrow; pandas (extra `frames`) is loaded where a frame is returned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stormsail.core.errors import ChoiceError, ConfigError, nearest
from stormsail.core.files import atomic
from stormsail.core.files.artifact import write_error
from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.stats.figures import DAY_MS, Array, bars_per_year, returns_of
from stormsail.evaluation.stats.performance import (
    MINIMUM_PAIRS,
    Period,
    drawdowns_of,
    period_returns,
    relative_to,
    rolling_figures,
)

if TYPE_CHECKING:
    import pandas as pd

BENCHMARK = "buy and hold"
"""Benchmark where none is chosen."""

ROLLING_DAYS = 30
"""Days of a rolling window where none is chosen."""

TABLES = (
    "returns", "trades", "monthly", "yearly", "drawdowns", "rolling", "benchmarks", "costs",
    "exposure", "regimes", "capacity", "folds",
)  # fmt: skip
"""All tables, in the order in which they are shown; those that were not measured are left out."""

_COLUMNS = {
    "costs": ("item", "long", "short", "both"),
    "exposure": ("exposure", "value"),
    "regimes": ("kind", "regime", "bars", "total_return", "mean_return", "sharpe"),
    "capacity": ("capital", "gain", "total_return", "sharpe", "impact"),
    "folds": ("fold", "total_return", "sharpe", "volatility", "max_drawdown"),
}  # in the order in which they are read: a saved document has its names by the alphabet

_TIME = pa.timestamp("ms", tz="UTC")


@dataclass(frozen=True, eq=False)
class Frames:
    """Tables of one result. Times are closes of bars, UTC, but those of trades: opens."""

    ts: NDArray[np.int64]
    """Close times of the marks, UTC milliseconds, [N + 1]."""
    values: Array
    """Equity at the marks, [N + 1]."""
    bar_ms: int
    fills: pa.Table
    """Trades, as they are saved."""
    benchmarks: Mapping[str, Array] = field(default_factory=dict)
    """Equity of baselines at the same marks, by name."""
    performance: Mapping[str, JsonValue] = field(default_factory=dict)
    """The document `performance`; empty where it was not measured."""

    def returns(self) -> "pd.Series[float]":
        """Return the simple return of each bar, by its close."""
        return _pandas(self.table("returns")).set_index("close")["return"]

    def equity(self) -> "pd.Series[float]":
        """Return the equity at each mark, the start included."""
        table = pa.table({"close": _times(self.ts), "equity": self.values})
        return _pandas(table).set_index("close")["equity"]

    def trades(self) -> "pd.DataFrame":
        """Return every fill, liquidation and delisting, by the open of its bar."""
        return _pandas(self.table("trades")).set_index("open")

    def monthly(self) -> "pd.DataFrame":
        """Return the return of each month: a row a year, columns 1 to 12 and `year`."""
        months = _pandas(self.table("monthly"))
        wide = months.pivot_table(index="year", columns="month", values="return", aggfunc="first")
        years = _pandas(self.table("yearly")).set_index("year")["return"]
        return wide.reindex(columns=range(1, 13)).assign(year=years)

    def yearly(self) -> "pd.Series[float]":
        """Return the return of each year."""
        return _pandas(self.table("yearly")).set_index("year")["return"]

    def drawdowns(self) -> "pd.DataFrame":
        """Return all drawdowns, largest first; one that lasts has no recovery."""
        return _pandas(self.table("drawdowns"))

    def rolling(
        self, *, days: float = ROLLING_DAYS, benchmark: str | None = None
    ) -> "pd.DataFrame":
        """Return volatility, Sharpe ratio and beta over the last days, by close.

        Empty where the result is shorter than a window; `rolling_table` says which benchmark.
        """
        return _pandas(self.rolling_table(days=days, benchmark=benchmark)).set_index("close")

    def against(self, *benchmarks: str) -> "pd.DataFrame":
        """Return alpha, beta and information ratio against some baselines; none means all."""
        table = _pandas(self.table("benchmarks")).set_index("benchmark")
        for name in benchmarks:
            self._check(name)
        return table.loc[list(benchmarks)] if benchmarks else table

    def frame(self, name: str) -> "pd.DataFrame":
        """Return any table of `TABLES` as a frame, such as `costs` or `capacity`."""
        return _pandas(self.table(name))

    def to_quantstats(self) -> "pd.Series[float]":
        """Return daily returns as quantstats wants them: times without a zone, one a day, UTC.

        A day has the bars that open in it. `quantstats.reports.html(series, periods_per_year=365)`.
        """
        pandas = _import_pandas()
        days, place = np.unique((self.ts[1:] - self.bar_ms) // DAY_MS, return_inverse=True)
        growth = np.ones(days.size)
        np.multiply.at(growth, place, 1.0 + returns_of(self.values))
        index = pandas.to_datetime(days * DAY_MS, unit="ms")
        return pandas.Series(growth - 1.0, index=index, name="returns")

    def table(self, name: str) -> pa.Table:
        """Return one table of `TABLES`.

        Raises:
            ChoiceError: if there is no such table, or what it shows was not measured.
        """
        table = self._made(name) if name in TABLES else None
        if table is None:
            known = name in TABLES
            raise ChoiceError(
                wrong=f"a table must be one of {', '.join(self.tables())}",
                found=f"`{name}`" + (", which was not measured" if known else ""),
                remedy="Measure it: `stormsail backtest --performance --baselines`, or "
                "`performance_of`."
                if known
                else "Choose one of those.",
            )
        return table

    def tables(self) -> dict[str, pa.Table]:
        """Return all tables that were measured, by name."""
        made = {name: self._made(name) for name in TABLES}
        return {name: table for name, table in made.items() if table is not None}

    def _made(self, name: str) -> pa.Table | None:
        """Return one table; None where it was not measured."""
        match name:
            case "monthly" | "yearly":
                return self._periods("month" if name == "monthly" else "year")
            case "rolling":
                return self.rolling_table()
            case "capacity":
                return _rows_table(name, _items(self.performance.get("capacity")))
            case _:
                table: pa.Table | None = getattr(self, f"_{name}")()
                return table

    def write_csv(self, folder: Path | str) -> list[Path]:
        """Write every table as a CSV file into a new folder; return the files.

        Times are ISO 8601 in UTC, numbers the shortest decimals that give the float64 back.

        Raises:
            ArtifactError: if the folder exists, or the disk refuses.
        """
        from pyarrow import csv

        folder = Path(folder)
        atomic.check_free(folder)
        files = []
        try:
            atomic.make_folders(folder)
            with atomic.open_folder(folder, follow=True) as place:
                for name, table in self.tables().items():
                    sink = pa.BufferOutputStream()
                    csv.write_csv(_iso(table), sink)
                    atomic.replace_file(place, f"{name}.csv", sink.getvalue().to_pybytes())
                    files.append(folder / f"{name}.csv")
        except OSError as error:
            raise write_error(folder, error) from error
        return files

    # -------------------------------------------------------------- tables

    def _returns(self) -> pa.Table:
        columns = {
            "close": _times(self.ts[1:]),
            "return": returns_of(self.values),
            "equity": self.values[1:],
        }
        for name, equity in self.benchmarks.items():
            columns[name] = returns_of(equity)
        return pa.table(columns)

    def _trades(self) -> pa.Table:
        names = ["open" if name == "ts" else name for name in self.fills.column_names]
        table = self.fills.rename_columns(names)
        return table.set_column(0, "open", table["open"].cast(_TIME))

    def _periods(self, period: Period) -> pa.Table:
        returns = returns_of(self.values)
        rows = period_returns(returns, self.ts[1:], bar_ms=self.bar_ms, period=period)
        columns: dict[str, list[Any]] = {"year": [row.year for row in rows]}
        if period == "month":
            columns["month"] = [row.month for row in rows]
        columns |= {"return": [row.value for row in rows], "bars": [row.bars for row in rows]}
        return pa.table(columns)

    def _drawdowns(self) -> pa.Table:
        rows = drawdowns_of(self.values)
        ends = [row.recovery for row in rows]
        return pa.table(
            {
                "depth": pa.array([row.depth for row in rows], pa.float64()),
                "peak": _times(self.ts[[row.peak for row in rows]]),
                "trough": _times(self.ts[[row.trough for row in rows]]),
                "recovery": pa.array(
                    [None if end is None else int(self.ts[end]) for end in ends], _TIME
                ),
                "bars": pa.array(
                    [
                        (len(self.ts) - 1 if end is None else end) - row.peak
                        for row, end in zip(rows, ends, strict=True)
                    ],
                    pa.int64(),
                ),
            }
        )

    def rolling_table(
        self, *, days: float = ROLLING_DAYS, benchmark: str | None = None
    ) -> pa.Table | None:
        """Return the table behind `rolling`; None where the result is shorter than a window.

        Without a benchmark, beta is that on buy and hold, or on the first baseline there is.
        """
        window = max(2, round(days * DAY_MS / self.bar_ms))
        if len(self.ts) - 1 < max(window, MINIMUM_PAIRS):
            return None
        if benchmark is not None:
            self._check(benchmark)
        usual = BENCHMARK if BENCHMARK in self.benchmarks else next(iter(self.benchmarks), "")
        market = self.benchmarks.get(benchmark or usual)
        rolled = rolling_figures(
            returns_of(self.values),
            window=window,
            per_year=bars_per_year(self.bar_ms),
            benchmark=None if market is None else returns_of(market),
        )
        columns = {
            "close": _times(self.ts[1:][rolled.ends]),
            "volatility": rolled.volatility,
            "sharpe": rolled.sharpe,
        }
        return pa.table(columns if rolled.beta is None else {**columns, "beta": rolled.beta})

    def _benchmarks(self) -> pa.Table | None:
        if not self.benchmarks or len(self.ts) - 1 < MINIMUM_PAIRS:
            return None
        own, rows = returns_of(self.values), []
        for name, equity in self.benchmarks.items():
            figures = relative_to(own, returns_of(equity), per_year=bars_per_year(self.bar_ms))
            ends = {
                f"{key}_{end}": value
                for key in ("alpha", "beta")
                for end, value in zip(("low", "high"), figures.interval(key), strict=True)
            }
            rows.append({"benchmark": name, **figures._asdict(), **ends})
        return pa.Table.from_pylist(rows).drop_columns(["alpha_error", "beta_error"])

    def _costs(self) -> pa.Table | None:
        attribution = _mapping(self.performance.get("attribution"))
        return _rows_table("costs", _items(attribution.get("costs")))

    def _exposure(self) -> pa.Table | None:
        attribution = _mapping(self.performance.get("attribution"))
        return _rows_table("exposure", _items(attribution.get("exposure")))

    def _regimes(self) -> pa.Table | None:
        rows = _items(self.performance.get("regimes"))
        return _rows_table("regimes", [_flat(_mapping(row)) for row in rows])

    def _folds(self) -> pa.Table | None:
        folds = _items(self.performance.get("folds"))
        rows = [{"fold": place, **_flat(_mapping(fold))} for place, fold in enumerate(folds)]
        return _rows_table("folds", rows)

    def only(self, benchmark: str) -> "Frames":
        """Return the same tables with one benchmark."""
        self._check(benchmark)
        return replace(self, benchmarks={benchmark: self.benchmarks[benchmark]})

    def _check(self, benchmark: str) -> None:
        if benchmark not in self.benchmarks:
            near = nearest(benchmark, self.benchmarks)
            raise ChoiceError(
                wrong=f"a benchmark must be one of {', '.join(self.benchmarks) or 'none'}",
                found=f"`{benchmark}`",
                remedy=f"Did you mean `{near}`?"
                if near
                else "Choose one of those, or measure baselines with `--baselines`.",
            )


def _times(ts: NDArray[np.int64]) -> pa.Array:
    return pa.array(ts, pa.int64()).cast(_TIME)


def _iso(table: pa.Table) -> pa.Table:
    """Return a table with times as ISO 8601 texts."""
    from pyarrow import compute

    for place, kind in enumerate(table.schema.types):
        if kind == _TIME:
            text = compute.strftime(table.column(place), format="%Y-%m-%dT%H:%M:%SZ")
            table = table.set_column(place, table.column_names[place], text)
    return table


def _flat(figures: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return numbers as they are, and of statements the value."""
    return {
        name: value.get("value") if isinstance(value, dict) else value
        for name, value in figures.items()
    }


def _rows_table(
    name: str, rows: Sequence[JsonValue] | Sequence[dict[str, JsonValue]]
) -> pa.Table | None:
    """Return rows as a table whose columns stand in their own order."""
    if not rows:
        return None
    table = pa.Table.from_pylist(list(rows))
    columns = table.column_names
    known = [column for column in _COLUMNS[name] if column in columns]
    return table.select([*known, *(column for column in columns if column not in known)])


def _mapping(value: JsonValue) -> Mapping[str, JsonValue]:
    return value if isinstance(value, dict) else {}


def _items(value: JsonValue) -> list[JsonValue]:
    return list(value) if isinstance(value, list) else []


def _pandas(table: pa.Table | None) -> "pd.DataFrame":
    _import_pandas()
    return (
        pa.table({"close": _times(np.zeros(0, np.int64))}) if table is None else table
    ).to_pandas()


def _import_pandas() -> Any:  # noqa: ANN401 - a module
    try:
        import pandas
    except ImportError as error:
        raise ConfigError(
            "missing-extra",
            wrong="frames need the package pandas",
            found="no such package in this environment",
            remedy="Run `pip install 'stormsail[frames]'`, or use `tables()` and `write_csv()`.",
        ) from error
    return pandas
