"""Frames and CSV files of results, read back by pandas, pyarrow and quantstats."""

import csv
import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from backtest_lab import agent_for, panel, plain
from evaluation_peers import peer
from report_lab import passed, write_full_backtest
from stormsail.core.errors import ArtifactError, ChoiceError
from stormsail.evaluation import read_result
from stormsail.evaluation.engine.run import backtest
from stormsail.evaluation.performance.document import performance_of
from stormsail.evaluation.stats import figures
from stormsail.evaluation.stats.frames import TABLES, Frames

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
START = 1_640_995_200_000
"""2022-01-01 00:00 UTC."""
EMPTY = pa.table({"ts": pa.array([], pa.int64()), "symbol": pa.array([], pa.string())})


def frames(bars=24 * 70, seed=0, **changes):
    generator = np.random.Generator(np.random.PCG64(seed))
    returns = 0.004 * generator.standard_normal((bars, 2)) + 0.0001
    equity = 1_000.0 * np.cumprod(np.vstack((np.ones(2), 1.0 + returns)), axis=0)
    ts = START + HOUR_MS * np.arange(bars + 1, dtype=np.int64)
    given = {"benchmarks": {"buy and hold": equity[:, 1]}, **changes}
    return Frames(ts, equity[:, 0], HOUR_MS, EMPTY, **given)


def test_a_saved_backtest_becomes_frames_in_two_lines(tmp_path):
    pandas = peer("pandas")
    write_full_backtest(tmp_path / "full")
    saved = read_result(tmp_path / "full")
    series = saved.frames.returns()
    assert series.to_numpy() == pytest.approx(saved.returns, abs=0.0)
    assert str(series.index.dtype) == "datetime64[ms, UTC]"
    assert series.index[0] == pandas.Timestamp(int(saved.ts[1]), unit="ms", tz="UTC")
    assert saved.frames.equity().iloc[-1] == saved.total[-1]
    trades = saved.frames.trades()
    assert len(trades) == saved.trades.num_rows
    assert trades["fee"].sum() == pytest.approx(sum(saved.trades["fee"].to_pylist()))
    assert list(saved.frames.against().index) == ["flat", "buy and hold", "momentum"]


def test_a_backtest_gives_the_frames_of_its_saved_folder():
    peer("pandas")
    result, _, _ = passed(120)
    assert result.frames.returns().to_numpy() == pytest.approx(result.returns, abs=0.0)
    assert len(result.frames.trades()) == len(result.trades)
    with pytest.raises(ChoiceError, match="`costs`, which was not measured"):
        result.frames.frame("costs")
    with pytest.raises(ChoiceError, match="Choose one of those"):
        result.frames.frame("sales")


def test_columns_stand_in_the_same_order_in_a_result_and_in_its_saved_folder():
    wanted = {
        "costs": ["item", "long", "short", "both"],
        "exposure": ["exposure", "value"],
        "regimes": ["kind", "regime", "bars", "total_return", "mean_return", "sharpe"],
        "capacity": ["capital", "gain", "total_return", "sharpe", "impact"],
    }
    result, _, bars = passed(120)
    document = performance_of(result, bars).document()
    saved = json.loads(json.dumps(document, sort_keys=True))
    for performance in (document, saved):
        table = replace(result.frames, performance=performance)
        for name, columns in wanted.items():
            assert table.table(name).column_names == columns
    row = replace(result.frames, performance=saved).table("costs").to_pylist()[0]
    assert row == document["attribution"]["costs"][0]


def test_months_and_years_stand_in_one_frame():
    peer("pandas")
    table = frames()
    monthly = table.monthly()
    assert list(monthly.columns) == [*range(1, 13), "year"]
    assert list(monthly.index) == [2022]
    row = monthly.loc[2022]
    assert np.isfinite(row.loc[[1, 2, 3]].astype(float)).all()
    assert math.isnan(row.loc[4])
    growth = (1.0 + row.loc[1]) * (1.0 + row.loc[2]) * (1.0 + row.loc[3]) - 1.0
    assert growth == pytest.approx(row.loc["year"], rel=1e-12)
    assert table.yearly().loc[2022] == pytest.approx(table.values[-1] / 1_000.0 - 1.0, rel=1e-12)


def test_quantstats_reads_the_daily_returns():
    quantstats = peer("quantstats.stats")
    table = frames()
    daily = table.to_quantstats()
    assert len(daily) == 70
    assert daily.index.tz is None
    assert daily.index[0].isoformat() == "2022-01-01T00:00:00"
    total = figures.total_return(figures.returns_of(table.values))
    assert float(quantstats.comp(daily)) == pytest.approx(total, rel=1e-12)
    first = table.values[24] / table.values[0] - 1.0
    assert daily.iloc[0] == pytest.approx(first, rel=1e-12)
    deviation = figures.sharpe(daily.to_numpy(), per_year=365.0)
    assert float(quantstats.sharpe(daily, periods=365)) == pytest.approx(deviation, rel=1e-12)


def test_rolling_and_benchmark_can_be_chosen():
    peer("pandas")
    other = frames(seed=5).values
    table = frames(benchmarks={"momentum": other})
    rolled = table.rolling(days=10, benchmark="momentum")
    assert len(rolled) == 24 * 70 - 240 + 1
    assert list(rolled.columns) == ["volatility", "sharpe", "beta"]
    assert rolled.index[-1].value // 1_000_000 == table.ts[-1]
    with pytest.raises(ChoiceError, match="Did you mean `momentum`"):
        table.rolling(benchmark="momentun")
    assert len(frames(bars=20).rolling()) == 0
    assert list(table.only("momentum").against().index) == ["momentum"]
    row = table.against("momentum").loc["momentum"]
    assert row["beta_low"] < row["beta"] < row["beta_high"]


def test_every_table_is_written_as_csv_and_reads_back_exactly(tmp_path):
    table = frames()
    files = table.write_csv(tmp_path / "csv")
    assert [file.stem for file in files] == [name for name in TABLES if name in table.tables()]
    with (tmp_path / "csv" / "returns.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 24 * 70
    assert rows[0]["close"] == "2022-01-01T01:00:00.000Z"
    assert [float(row["equity"]) for row in rows] == table.values[1:].tolist()
    with pytest.raises(ArtifactError):
        table.write_csv(tmp_path / "csv")


def test_a_lasting_drawdown_has_no_recovery():
    peer("pandas")
    equity = np.array([100.0, 80.0, 100.0, 90.0])
    table = Frames(START + HOUR_MS * np.arange(4), equity, HOUR_MS, EMPTY).drawdowns()
    assert table["depth"].tolist() == pytest.approx([-0.2, -0.1])
    assert table["bars"].tolist() == [2, 1]
    assert table["recovery"].isna().tolist() == [False, True]


def test_frames_of_an_agents_backtest_hold_its_sides():
    peer("pandas")
    bars = panel(90)
    trades = backtest(agent_for(bars), bars, plain()).frames.trades()
    assert set(trades["side"]) == {"buy", "sell"}


def test_tables_are_made_without_pandas():
    code = (
        "import sys, numpy as np, pyarrow as pa\n"
        "class Absent:\n    def find_spec(self, name, *_):\n"
        "        if name == 'pandas': raise ImportError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from stormsail.evaluation.stats.frames import Frames\n"
        "from stormsail.core.errors import ConfigError\n"
        "trades = pa.table({'ts': pa.array([], pa.int64())})\n"
        "made = Frames(3600000 * np.arange(5), np.arange(1.0, 6.0), 3600000, trades)\n"
        "assert made.table('returns').num_rows == 4\n"
        "try:\n    made.returns()\n"
        "except ConfigError as error:\n    print(error.code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "missing-extra", done.stderr
