"""`stormsail import` as a user meets it: words, exit codes, files that are the same again."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

from command_lab import forked, fresh
from stormsail.market.checks import check_file, text
from stormsail.market.checks.report import Collector
from stormsail.market.interval import Interval
from stormsail.market.store import Store

H = 3_600_000
START = 1_609_459_200_000
HOUR = Interval.parse("1h")


def kline(row: int) -> str:
    ts, first, last = START + row * H, 100 + row % 5, 100 + (row + 1) % 5
    high, low, quote = max(first, last) + 1, min(first, last) - 1, 10.0 * (first + last) / 2
    cells = [ts, first, high, low, last, 10.0, ts + H - 1, quote, 30, 4.0, 0.4 * quote, 0]
    return ",".join(map(str, cells)) + "\n"


def dump(folder: Path, rows: range, name: str = "BTCUSDT-1h-2021-01") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.csv", "".join(map(kline, rows)))
    return path


def run(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return forked("import", *arguments, cwd=cwd)


def tree(root: Path) -> dict[str, bytes]:
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def test_an_import_says_what_it_read_and_where_it_went(tmp_path):
    dump(tmp_path / "dumps", range(50))
    result = run("dumps", "--resample", "4h", "--resample", "1d", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "BTC/USDT 1h: read 50 rows from 1 file, 2021-01-01T00:00:00Z to 2021-01-03T01:00:00Z, "
        "times in ms",
        "wrote 50 bars to data/BTC-USDT/1h.parquet",
        "wrote 12 bars to data/BTC-USDT/4h.parquet (from 1h to 4h; 1 incomplete left out)",
        "wrote 2 bars to data/BTC-USDT/1d.parquet (from 1h to 1d; 1 incomplete left out)",
    ]
    assert len(Store(tmp_path / "data").read("BTC/USDT", HOUR)) == 50


def test_a_second_import_gives_the_same_bytes_from_anywhere(tmp_path):
    dump(tmp_path / "dumps", range(50))
    words = ("--resample", "4h", "--market", "perp")
    assert run("dumps", *words, cwd=tmp_path).returncode == 0
    first = tree(tmp_path / "data")
    assert set(first) == {"BTC-USDT_USDT/1h.parquet", "BTC-USDT_USDT/4h.parquet"}
    assert run("dumps", *words, cwd=tmp_path).returncode == 0
    assert tree(tmp_path / "data") == first
    (tmp_path / "elsewhere").mkdir()
    other = fresh(
        *("import", tmp_path / "dumps" / "*.zip"),
        *(*words, "--store", tmp_path / "other"),
        cwd=tmp_path / "elsewhere",
        TZ="Asia/Kathmandu",
        PYTHONHASHSEED="7",
        LC_ALL="C",
    )
    assert other.returncode == 0
    assert tree(tmp_path / "other") == first


def test_the_present_decides_about_the_last_bar(tmp_path):
    path = dump(tmp_path / "dumps", range(50))
    result = run(path, "--now", "2021-01-03T01:30:00Z", cwd=tmp_path)
    assert "dropped: the bar of 2021-01-03T01:00:00Z" in result.stdout
    assert "wrote 49 bars" in result.stdout
    wrong = run(path, "--now", "tomorrow", cwd=tmp_path)
    assert wrong.returncode == 2
    assert wrong.stderr == (
        "stormsail: `--now` must be a day or a time; found `tomorrow`. Write `2020-01-31` or "
        "`2020-01-31T08:00Z`. [config-value]\n"
    )


@pytest.mark.parametrize("now", ["now", "NaT", "5"])
def test_a_present_that_is_no_time_is_refused(now, tmp_path):
    result = run(dump(tmp_path / "dumps", range(50)), "--now", now, cwd=tmp_path)
    assert result.returncode == 2
    assert f"found `{now}`. Write `2020-01-31`" in result.stderr


def test_a_far_present_does_not_wrap(tmp_path):
    result = run(dump(tmp_path / "dumps", range(50)), "--now", "2300-01-01", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert "wrote 50 bars" in result.stdout


def test_a_ragged_file_is_refused_and_never_aborts(tmp_path):
    (tmp_path / "BTCUSDT-1h.csv").write_text("".join(map(kline, range(50))) + "1,2\n")
    for _ in range(4):  # an abort would come while the interpreter ends
        result = fresh("import", "BTCUSDT-1h.csv", cwd=tmp_path)
        assert result.returncode == 2
        assert "[data-unreadable]" in result.stderr


def test_no_thread_of_arrow_enters_python(tmp_path, monkeypatch):
    """One that wants the interpreter while that ends aborts the process, on a busy machine."""
    path, real = tmp_path / "BTCUSDT-1h.csv", text.pacsv.read_csv
    path.write_text("".join(map(kline, range(50))) + "1,2\n")
    sources, callers = [], []

    def spy(source, *, parse_options, **options):
        handler = parse_options.invalid_row_handler
        if handler is not None:

            def asked(row):
                callers.append(threading.current_thread())
                return handler(row)

            parse_options.invalid_row_handler = asked
        sources.append(source)
        return real(source, parse_options=parse_options, **options)

    monkeypatch.setattr(text.pacsv, "read_csv", spy)
    report = check_file(path, interval=HOUR, symbol="BTC/USDT")
    assert "ragged-row" in report.summary()
    assert callers == [threading.main_thread()]
    assert [type(source) for source in sources] == [pa.BufferReader] * 2  # as numbers, as text


@pytest.mark.parametrize("block", [120, 157, 400])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_rows_do_not_depend_on_where_blocks_end(block, end, tmp_path, monkeypatch):
    path = tmp_path / "BTCUSDT-1h.csv"
    lines = [kline(row).strip() for row in range(50)]
    lines[30] = "1,2"
    path.write_bytes(end.join([*lines, ""]).encode())

    def rows():
        collector = Collector()
        table, _ = text.read_text(lambda: path.open("rb"), collector, limit=1 << 20)
        return table.to_pydict(), [finding.places for finding in collector.findings]

    whole = rows()
    assert len(whole[0]["ts"]) == 49
    assert [place.row for place in whole[1][-1]] == [30]
    monkeypatch.setattr(text, "_BLOCK", block)
    assert rows() == whole


def test_a_second_month_is_joined_and_its_longer_bars_cover_both(tmp_path):
    first = dump(tmp_path / "a", range(50))
    second = dump(tmp_path / "b", range(48, 100), "BTCUSDT-1h-2021-02")
    words = ("--resample", "4h")
    assert run(first, *words, cwd=tmp_path).returncode == 0
    result = run(second, *words, cwd=tmp_path)
    assert "joined: 50 stored and 52 new bars, 2 of them in both" in result.stdout
    store = Store(tmp_path / "data")
    bars = store.read("BTC/USDT", HOUR)
    assert bars.ts.tolist() == [START + row * H for row in range(100)]
    assert bars.notes["source"] == "BTCUSDT-1h-2021-01.csv; BTCUSDT-1h-2021-02.csv"
    assert len(store.read("BTC/USDT", Interval.parse("4h"))) == 25
    before = tree(tmp_path / "data")
    for source in (first, second):
        assert run(source, *words, cwd=tmp_path).returncode == 0
        assert tree(tmp_path / "data") == before


@pytest.mark.refusal
def test_rows_that_contradict_the_store_are_refused_unless_they_replace_it(tmp_path):
    assert run(dump(tmp_path / "a", range(50)), cwd=tmp_path).returncode == 0
    before = tree(tmp_path / "data")
    text = "".join(map(kline, range(60))).replace(",30,", ",31,")
    (tmp_path / "BTCUSDT-1h.csv").write_text(text)
    result = run("BTCUSDT-1h.csv", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        "stormsail: new rows of BTC/USDT 1h must equal the stored rows of the same times; found "
        "2021-01-01T00:00:00Z with `trades` 30 stored and 31 new. Import into another store, or "
        "pass `--replace`. [data-mismatch]\n"
    )
    assert tree(tmp_path / "data") == before
    result = run("BTCUSDT-1h.csv", "--replace", cwd=tmp_path)
    span = "2021-01-01T00:00:00Z to 2021-01-03T01:00:00Z"
    assert f"replaced: 50 bars, {span}\nwrote 60 bars" in result.stdout


def test_only_columns_that_both_have_are_kept_and_that_is_said(tmp_path):
    assert run(dump(tmp_path / "a", range(50)), cwd=tmp_path).returncode == 0
    lines = [",".join(kline(row).split(",")[:6]) for row in range(50, 60)]
    text = "\n".join(["ts,open,high,low,close,volume", *lines])
    (tmp_path / "BTCUSDT-1h.csv").write_text(text)
    result = run("BTCUSDT-1h.csv", cwd=tmp_path)
    assert "is stored without quote_volume, trades" in result.stdout
    bars = Store(tmp_path / "data").read("BTC/USDT", HOUR)
    assert (len(bars), len(bars.columns)) == (60, 6)


def test_funding_is_joined_too(tmp_path):
    for name, rows in (("a", range(6)), ("b", range(5, 12))):
        lines = [f"{START + row * 8 * H},0.0001" for row in rows]
        text = "\n".join(["ts,funding_rate", *lines])
        (tmp_path / f"BTCUSDT_funding_{name}.csv").write_text(text)
        result = run(f"BTCUSDT_funding_{name}.csv", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
    assert "joined: 6 stored and 7 new rates, 1 of them in both" in result.stdout
    funding = Store(tmp_path / "data").read_funding("BTC/USDT:USDT")
    assert funding.ts.tolist() == [START + row * 8 * H for row in range(12)]


def test_defects_are_refused_with_exit_code_two_and_nothing_is_written(tmp_path):
    good = dump(tmp_path / "dumps", range(50))
    bad = dump(tmp_path / "dumps", [*range(50), 49], "ETHUSDT-1h-2021-01")
    result = run(good, bad, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert "ETH/USDT 1h must be free of defects" in result.stderr
    assert "duplicate-same" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "data").exists()
    mended = run(bad, "--repair", "drop-duplicates", cwd=tmp_path)
    assert mended.returncode == 0, mended.stderr
    assert "repaired: " in mended.stdout
    assert len(Store(tmp_path / "data").read("ETH/USDT", HOUR)) == 50


def test_a_length_that_does_not_fit_is_refused_before_anything_is_written(tmp_path):
    path = dump(tmp_path / "dumps", range(50))
    result = run(path, "--resample", "90m", cwd=tmp_path)
    assert result.returncode == 2
    assert "[data-interval]" in result.stderr
    assert not (tmp_path / "data").exists()


def test_foreign_columns_units_and_names_are_stated_by_options(tmp_path):
    lines = ["when;o;h;l;c;vol"]
    for row in range(30):
        cells = kline(row).split(",")
        lines.append(";".join([str((START + row * H) // 1000), *cells[1:6]]))
    (tmp_path / "x.txt").write_text("\n".join(lines))
    words = ("--symbol", "BTC/USDT", "--interval", "1h", "--columns", "ts=when")
    result = run("x.txt", *words, "--time-unit", "s", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    bars = Store(tmp_path / "data").read("BTC/USDT", HOUR)
    assert bars.ts.tolist() == [START + row * H for row in range(30)]


def test_the_verb_loads_neither_torch_nor_arrow_before_it_runs(tmp_path):
    code = (
        "import sys, stormsail.cli.data.import_\n"
        "print({'torch', 'pyarrow', 'numpy'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "set()\n"


@pytest.mark.campaign
def test_kills_at_random_times_leave_the_old_or_the_new_store(tmp_path):
    old, new = dump(tmp_path / "old", range(48)), dump(tmp_path / "new", range(96))
    words = ("--resample", "4h", "--store")
    for source, root in ((old, "a"), (new, "b")):
        assert run(source, *words, root, cwd=tmp_path).returncode == 0
    before, after = tree(tmp_path / "a"), tree(tmp_path / "b")
    started = time.monotonic()
    fresh("import", new, *words, "c", cwd=tmp_path)
    length = time.monotonic() - started
    chance, ends = random.Random(7), set()
    for _ in range(40):
        root = tmp_path / "store"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(tmp_path / "a", root)
        command = [sys.executable, "-m", "stormsail", "import", str(new), *words, str(root)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
        time.sleep(chance.uniform(0.6, 1.05) * length)
        process.send_signal(signal.SIGKILL)
        process.wait()
        files = tree(root).items()  # the lock of a process that is gone holds nobody up
        now = {name: data for name, data in files if "/.tmp-" not in name and name != ".lock"}
        for name, data in now.items():
            assert data in (before[name], after[name])
        ends.add(tuple(data == after[name] for name, data in now.items()))
        assert run(new, *words, root, cwd=tmp_path).returncode == 0
        assert tree(root) == after
    assert (False, False) in ends


def test_terms_are_imported_with_the_bars_and_added_later(tmp_path):
    dump(tmp_path / "dumps", range(30))
    (tmp_path / "terms.toml").write_text(
        '["BTC/USDT"]\nkind = "margin"\nborrow_rate = 0.05\nlot = 0.001\n'
    )
    result = run("dumps", "--terms", "terms.toml", "--term", "lot=0.00001", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1] == (
        "wrote terms (kind, lot, borrow_rate) to data/BTC-USDT/terms.json"
    )
    store = Store(tmp_path / "data")
    stored = store.read_terms("BTC/USDT")
    assert (stored.terms.kind, stored.terms.lot, stored.terms.borrow_rate) == (
        "margin",
        0.00001,  # an option stands before the file
        0.05,
    )
    assert set(stored.sources.values()) == {"given"}
    later = run("--term", "tick=0.01", cwd=tmp_path)
    assert later.stdout == (
        "wrote terms (kind, lot, tick, borrow_rate) to data/BTC-USDT/terms.json\n"
    )
    assert store.read_terms("BTC/USDT").terms.tick == 0.01
    (tmp_path / "terms.json").write_text('{"BTC/USDT": {"kind": "spot"}}')
    again = run("--terms", "terms.json", "--replace", cwd=tmp_path)
    assert again.stdout == "wrote terms (kind) to data/BTC-USDT/terms.json\n"


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('["ETH/USDT"]\nlot = 1\n', "`ETH/USDT` and BTC/USDT"),
        ('["BTC/USDT"]\nkind = "perpetual"\n', "must be `spot` or `margin`"),
        ('["BTC/USDT"]\nlto = 1\n', "lot"),
        ('["BTC/USDT"\n', "must be TOML"),
    ],
)
def test_terms_that_do_not_fit_are_refused_before_anything_is_written(tmp_path, text, words):
    dump(tmp_path / "dumps", range(30))
    (tmp_path / "terms.toml").write_text(text)
    result = run("dumps", "--terms", "terms.toml", cwd=tmp_path)
    assert result.returncode != 0
    assert words in " ".join(result.stderr.split())
    assert not (tmp_path / "data").exists()


@pytest.mark.refusal
def test_an_import_of_nothing_is_refused(tmp_path):
    result = run(cwd=tmp_path)
    assert result.returncode != 0
    assert "must have something to import" in " ".join(result.stderr.split())
