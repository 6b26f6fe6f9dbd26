"""Ten million rows of CSV are imported, every row, within 1.5 GB."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

ROWS, PART = 10_000_000, 500_000
START = 1_609_459_200_000
MOST_BYTES = 1_500_000_000


def write_part(stream, first: int, *, binance: bool) -> None:
    """Write bars of a second: a walk of cents around 30,000, the same for the same rows."""
    rng = np.random.Generator(np.random.PCG64(first))
    close = np.round(30_000.0 + np.cumsum(rng.normal(0.0, 0.1, PART)), 2)
    opening = np.concatenate((close[:1], close[:-1]))
    high = np.round(np.maximum(opening, close) + rng.uniform(0.0, 1.0, PART), 2)
    low = np.round(np.minimum(opening, close) - rng.uniform(0.0, 1.0, PART), 2)
    volume = np.round(rng.lognormal(0.0, 1.0, PART) + 0.001, 5)
    ts = START + 1_000 * np.arange(first, first + PART)
    columns = {"open_time" if binance else "ts": ts, "open": opening, "high": high, "low": low}
    columns |= {"close": close, "volume": volume}
    if binance:
        middle, half = (high + low) / 2.0, np.round(volume / 2.0, 5)
        columns |= {"close_time": ts + 999, "quote_volume": np.round(volume * middle, 8)}
        columns |= {"count": rng.integers(1, 90, PART), "taker_buy_volume": half}
        columns |= {"taker_buy_quote_volume": np.round(half * middle, 8)}
        columns |= {"ignore": np.zeros(PART, np.int64)}
    options = pacsv.WriteOptions(include_header=first == 0, quoting_style="none")
    pacsv.write_csv(pa.table(columns), stream, options)


@pytest.mark.campaign
@pytest.mark.parametrize("binance", [False, True], ids=["6-columns", "binance-12-columns"])
def test_ten_million_rows_are_imported_within_a_gigabyte_and_a_half(binance, tmp_path):
    path = tmp_path / "BTCUSDT-1s.csv"
    with path.open("wb") as stream:
        for first in range(0, ROWS, PART):
            write_part(stream, first, binance=binance)
    command = [sys.executable, "-m", "stormsail", "import", str(path), "--store", "data"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    started = time.monotonic()
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds, peak = time.monotonic() - started, usage.ru_maxrss * 1_024
    size = path.stat().st_size / 1e9
    print(f"{ROWS} rows, {size:.2f} GB: {peak / 1e9:.2f} GB, {seconds:.0f} s")  # noqa: T201
    assert process.returncode == 0
    assert f"wrote {ROWS} bars" in output
    ts = pq.read_table(Path(tmp_path) / "data" / "BTC-USDT" / "1s.parquet", columns=["ts"])["ts"]
    assert np.array_equal(ts.to_numpy(), START + 1_000 * np.arange(ROWS))
    assert peak <= MOST_BYTES
