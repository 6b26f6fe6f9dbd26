"""`stormsail check` and `stormsail import` judge a file the same, whatever is wrong with it."""

import gzip
import os
import socket
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest

import market_defects
from command_lab import forked
from stormsail.market import importers  # noqa: F401 - loaded here, so that no fork has to
from stormsail.market.bars import Bars, Mark
from stormsail.market.interval import Interval
from stormsail.market.store import Store

HOUR = Interval.parse("1h")
START = 1_609_459_200_000
NAMES = ("ts", "open", "high", "low", "close", "volume")
CLEAN = {name: market_defects.clean_bars(0, HOUR, rows=60)[name] for name in NAMES}
GOOD, REFUSED = True, False


def judged(path, *words: str) -> bool:
    """Return whether both accept a file, after asserting that they agree and say so in words."""
    root = path.parent
    market = ("--symbol", "BTC/USDT", "--interval", "1h")
    checked = forked("check", path, *market, *words, cwd=root)
    imported = forked("import", path, *market, *words, "--store", "data", cwd=root)
    for result in (checked, imported):
        assert "Traceback" not in result.stderr
    assert (checked.returncode == 0) == (imported.returncode == 0), checked.stdout + imported.stderr
    if imported.returncode:
        assert not (root / "data").exists()
        return REFUSED
    assert len(Store(root / "data").read("BTC/USDT", HOUR)) == 60
    return GOOD


def frame(*, zone: str | None = "UTC"):
    import pandas as pd  # loaded by the tests that need it, not by those who collect

    times = pd.to_datetime(CLEAN["ts"], unit="ms", utc=True).tz_convert(zone)
    return pd.DataFrame({name: CLEAN[name] for name in NAMES[1:]}, index=times)


def csv(**changes: object) -> bytes:
    columns = {name: np.asarray(column, dtype=object) for name, column in changes.items()}
    return market_defects.csv({**CLEAN, **columns})


FRAMES = {
    "unnamed index of zoned times": (lambda: frame().to_csv(), GOOD),
    "unnamed index of zone-less times": (lambda: frame(zone=None).to_csv(), REFUSED),
    "another zone": (lambda: frame(zone="Asia/Kolkata").to_csv(), GOOD),
    "a counter beside times": (
        lambda: frame().rename_axis("date").reset_index().to_csv(),
        GOOD,
    ),
    "a counter and no times": (lambda: frame().reset_index(drop=True).to_csv(), REFUSED),
}


@pytest.mark.parametrize("name", FRAMES)
def test_what_pandas_writes_is_judged_the_same(name, tmp_path):
    text, verdict = FRAMES[name]
    path = tmp_path / "bars.csv"
    path.write_text(text())
    assert judged(path) is verdict


def test_times_without_a_zone_are_read_as_utc_where_both_are_told(tmp_path):
    path = tmp_path / "bars.csv"
    path.write_text(frame(zone=None).to_csv())
    assert judged(path, "--time-unit", "iso") is GOOD
    assert Store(tmp_path / "data").read("BTC/USDT", HOUR).ts.tolist() == CLEAN["ts"].tolist()
    checked = forked("check", path, "--interval", "1h", "--time-unit", "iso", cwd=tmp_path)
    assert "D28 naive-time warning" in " ".join(checked.stdout.split())


def arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pyarrow.feather.write_feather(table, sink)
    return sink.getvalue().to_pybytes()


HALF = CLEAN["ts"].astype(float) + 0.5
FILES = {
    "clean": ("csv", csv(), GOOD),
    "seconds": ("csv", csv(ts=CLEAN["ts"] // 1_000), GOOD),
    "nanoseconds": ("csv", csv(ts=CLEAN["ts"] * 1_000_000), GOOD),
    "seconds from the middle on": (
        "csv",
        csv(ts=[t if i < 30 else t // 1_000 for i, t in enumerate(CLEAN["ts"])]),
        REFUSED,
    ),
    "half milliseconds": ("csv", csv(ts=HALF), REFUSED),
    "byte-order mark": ("csv", b"\xef\xbb\xbf" + csv(), GOOD),
    "carriage returns": ("csv", csv().replace(b"\n", b"\r\n"), GOOD),
    "old line ends": ("csv", csv().replace(b"\n", b"\r"), GOOD),
    "utf-16": ("csv", csv().decode().encode("utf-16"), REFUSED),
    "zero bytes": ("csv", csv().replace(b"\n", b"\0\n"), REFUSED),
    "header twice": ("csv", csv().split(b"\n")[0] + b"\n" + csv(), GOOD),
    "header inside": ("csv", csv() + csv().split(b"\n")[0] + b"\n", REFUSED),
    "no header": ("csv", csv().split(b"\n", 1)[1], REFUSED),
    "another name of the time": ("csv", csv().replace(b"ts,", b"date,"), GOOD),
    "two columns of time": (
        "csv",
        market_defects.csv(
            {"date": CLEAN["ts"], "timestamp": CLEAN["ts"]}
            | {name: CLEAN[name] for name in NAMES[1:]}
        ),
        REFUSED,
    ),
    "no volume": ("csv", csv().replace(b"volume", b"amount"), REFUSED),
    "extra column": ("csv", market_defects.csv({**CLEAN, "colour": CLEAN["ts"]}), GOOD),
    "text": ("csv", csv(close=["n/a", *CLEAN["close"][1:]]), REFUSED),
    "empty cell": ("csv", csv(close=["", *CLEAN["close"][1:]]), REFUSED),
    "ragged": ("csv", csv() + b"1,2\n", REFUSED),
    "cut off": ("csv", csv()[:-12], REFUSED),
    "empty": ("csv", b"", REFUSED),
    "header only": ("csv", csv().split(b"\n")[0] + b"\n", REFUSED),
    "gzip": ("csv.gz", gzip.compress(csv()), GOOD),
    "half a gzip": ("csv.gz", gzip.compress(csv())[:-20], REFUSED),
    "feather": ("feather", arrow(pa.table(CLEAN)), GOOD),
    "feather without zone": (
        "feather",
        arrow(pa.table({**CLEAN, "ts": CLEAN["ts"].astype("datetime64[ms]")})),
        REFUSED,
    ),
    "half a feather": ("feather", arrow(pa.table(CLEAN))[:-50], REFUSED),
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_every_kind_are_judged_the_same(name, tmp_path):
    suffix, content, verdict = FILES[name]
    path = tmp_path / f"bars.{suffix}"
    path.write_bytes(content)
    assert judged(path) is verdict


def test_a_zip_beside_whose_text_something_else_lies_is_judged_the_same(tmp_path):
    path = tmp_path / "bars.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("bars.csv", csv())
        archive.writestr("bars.csv.CHECKSUM", "1234")
    assert judged(path) is GOOD


@pytest.mark.refusal
def test_an_all_bad_file_is_never_repaired_into_an_empty_one(tmp_path):
    path = tmp_path / "bars_1h.csv"
    path.write_bytes(csv(close=["bad"] * 60))
    out = tmp_path / "mended_1h.csv"
    words = ("--repair", "drop-invalid-rows")
    checked = forked("check", path, *words, "--out", out, cwd=tmp_path)
    assert checked.returncode == 2
    assert checked.stderr == (
        f"stormsail: {path} must keep at least one row when it is repaired; found 60 rows, of "
        "which the rules drop-invalid-rows keep none. Mend the source; a file without a good row "
        "is refused, not made empty. [data-repair]\n"
    )
    assert not out.exists()
    market = ("--symbol", "BTC/USDT", "--store", "data")
    imported = forked("import", path, *words, *market, cwd=tmp_path)
    assert (imported.returncode, "D01 empty-file" in imported.stderr) == (2, True)
    assert not (tmp_path / "data").exists()


def pipe(path):
    os.mkfifo(path)


def door(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (pipe, "a named pipe"),
        (door, "a socket"),
        (lambda path: path.symlink_to("/dev/zero"), "a device"),
    ],
)
def test_pipes_sockets_and_devices_are_refused_in_words_without_waiting(make, kind, tmp_path):
    path = tmp_path / "BTCUSDT_1h.csv"
    make(path)
    for verb in ("check", "import"):
        result = forked(verb, path, cwd=tmp_path)
        assert result.returncode == 2
        assert result.stderr == (
            f"stormsail: {path} must be a file that can be read; found {kind} instead of a file. "
            "Check the path and its permissions. [data-missing]\n"
        )
        folder = forked(verb, tmp_path, cwd=tmp_path)
        assert (folder.returncode, kind in folder.stderr) == (2, True)


def test_links_to_files_are_followed(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "x").write_bytes(csv())
    path = tmp_path / "bars.csv"
    path.symlink_to(tmp_path / "far" / "x")
    assert judged(path) is GOOD


@pytest.mark.refusal
@pytest.mark.parametrize("option", ["--out", "--json-out"])
def test_a_pipe_as_target_is_refused_without_waiting(option, tmp_path):
    path, target = tmp_path / "bars_1h.csv", tmp_path / "pipe.csv"
    path.write_bytes(csv())
    os.mkfifo(target)
    words = ("--repair", "sort") if option == "--out" else ()
    result = forked("check", path, *words, option, target, cwd=tmp_path)
    assert (result.returncode, "a named pipe" in result.stderr) == (2, True)


@pytest.mark.refusal
@pytest.mark.parametrize("store", ["pipe", "/dev/null"])
def test_a_store_that_is_no_folder_is_refused_in_words(store, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "BTCUSDT_1h.csv").write_bytes(csv())
    result = forked("import", "BTCUSDT_1h.csv", "--store", store, cwd=tmp_path)
    kind = "a named pipe" if store == "pipe" else "a device"
    assert result.returncode == 2
    assert result.stderr == (
        f"stormsail: the store {store} must be a folder that can be written; found {kind}. Name "
        "another folder with `--store`, or free space or permissions. [data-write]\n"
    )


def test_a_reference_judges_the_wicks_of_a_file(tmp_path):
    path, other = tmp_path / "bars_1h.csv", tmp_path / "mark.csv"
    high = CLEAN["high"].copy()
    high[40] *= 2.0
    path.write_bytes(csv(high=high))
    other.write_bytes(csv())
    alone = forked("check", path, cwd=tmp_path)
    beside = forked("check", path, "--reference", other, cwd=tmp_path)
    shared = forked("check", path, "--reference", path, cwd=tmp_path)
    assert ["D48 false-wick" in x.stdout for x in (alone, beside, shared)] == [True, True, False]


def test_stored_mark_prices_judge_the_stored_wicks(tmp_path):
    high = CLEAN["high"].copy()
    high[40] *= 2.0
    store, symbol = Store(tmp_path), "BTC/USDT:USDT"
    path = store.write(Bars(symbol, HOUR, pa.table({**CLEAN, "high": high})))
    prices = {name: CLEAN[name] for name in NAMES[:5]}
    verdicts = []
    for change in (1.0, 2.0):  # a mark price that stayed, and one that went along
        marked = prices["high"].copy()
        marked[40] *= change
        store.write_mark(Mark(symbol, HOUR, pa.table({**prices, "high": marked})))
        verdicts.append("D48 false-wick" in forked("check", path, cwd=tmp_path).stdout)
    assert verdicts == [True, False]


@pytest.mark.parametrize("text", ["1s", "1M"])
def test_bars_of_a_second_and_of_a_month_are_imported_and_checked(text, tmp_path):
    """Fourteen months of which the ninth is missing: one gap, and nothing else."""
    months = np.arange("2023-01", "2024-03", dtype="datetime64[M]")
    ts = START + 1_000 * np.arange(14)
    if text == "1M":
        ts = months.astype("datetime64[ms]").astype(np.int64)
    rows = [i for i in range(14) if i != 8]
    columns = {name: CLEAN[name][rows] for name in NAMES[1:]}
    path = tmp_path / f"BTCUSDT-{text}-2023.csv"
    path.write_bytes(market_defects.csv({"ts": ts[rows], **columns}))
    checked = forked("check", path, cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout
    gap = "2023-09-01T00:00:00Z" if text == "1M" else "2021-01-01T00:00:08Z"
    assert f"D35 gap warning 1x (1 bars missing, at most 1 from {gap})" in checked.stdout
    imported = forked("import", path, cwd=tmp_path)
    assert imported.returncode == 0, imported.stderr
    stored = Store(tmp_path / "data").read("BTC/USDT", Interval.parse(text))
    assert stored.ts.tolist() == ts[rows].tolist()


def test_days_are_joined_to_months_and_half_a_month_is_left_out(tmp_path):
    """January, 29 days of February 2024, and ten days of March."""
    days = np.datetime64("2024-01-01") + np.arange(70)
    bars = market_defects.clean_bars(0, Interval.parse("1d"), rows=70)
    columns = {name: bars[name] for name in NAMES[1:]}
    path = tmp_path / "BTCUSDT-1d.csv"
    path.write_bytes(
        market_defects.csv({"ts": days.astype("datetime64[ms]").astype(np.int64), **columns})
    )
    result = forked("import", path, "--resample", "1mo", cwd=tmp_path)
    assert (
        "wrote 2 bars to data/BTC-USDT/1mo.parquet (from 1d to 1mo; 1 incomplete" in result.stdout
    )
    months = Store(tmp_path / "data").read("BTC/USDT", Interval.parse("1M"))
    assert months.column("high").tolist() == [
        bars["high"][:31].max(),
        bars["high"][31:60].max(),
    ]
    assert months.column("close").tolist() == [bars["close"][30], bars["close"][59]]
