"""`stormsail check` as a user meets it: words, exit codes, files."""

import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer import Typer
from typer.testing import CliRunner

import market_defects
from stormsail.cli.data.check import check
from stormsail.cli.output import add_command
from stormsail.core.errors import DataError
from stormsail.market.bars import Bars, Funding
from stormsail.market.checks import load_file
from stormsail.market.interval import Interval
from stormsail.market.store import Store

HOUR = Interval.parse("1h")


def run(*arguments: object):
    app = Typer()
    add_command(app, check)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def write(folder, name: str, *, seed: int = 0):
    path = folder / "bars_1h.csv"
    if name == "clean":
        path.write_bytes(market_defects.csv(market_defects.clean_bars(seed, HOUR)))
        return path
    case = market_defects.planted(name, seed, HOUR)
    path.write_bytes(case.content or market_defects.csv(case.bars))
    return path


def test_a_good_file_is_called_good(tmp_path):
    path = write(tmp_path, "clean")
    result = run(path)
    assert (result.exit_code, result.output) == (
        0,
        f"good {path}: 1500 rows, 0 errors, 0 warnings\n",
    )


def test_an_error_is_exit_code_one_with_places_and_remedy(tmp_path):
    result = run(write(tmp_path, "negative-volume"))
    assert result.exit_code == 1
    words = " ".join(result.output.split())
    for part in ("refused", "D21 negative-volume", "error", "row ", "--repair drop-invalid-rows"):
        assert part in words


def test_a_warning_is_exit_code_zero(tmp_path):
    result = run(write(tmp_path, "gap"))
    assert result.exit_code == 0
    assert "D35 gap" in result.output


def test_a_folder_is_every_file_in_it_and_json_holds_all_reports(tmp_path):
    folder = tmp_path / "data"
    (folder / "a").mkdir(parents=True)
    write(folder, "clean")
    write(folder / "a", "gap")
    (folder / ".hidden.csv").write_text("x")
    (folder / "notes.md").write_text("x")
    out = tmp_path / "out.json"
    result = run(folder, "--json-out", out)
    assert result.exit_code == 0
    assert "2 files, " in result.output
    assert [report["warnings"] for report in json.loads(out.read_text())["reports"]] == [1, 0]


def test_a_store_is_its_bars_and_its_rates(tmp_path):
    store = Store(tmp_path)
    bars = market_defects.clean_bars(0, HOUR)
    store.write(Bars("BTC/USDT:USDT", HOUR, pa.table(bars)))
    rates = pa.table({"ts": bars["ts"][::8], "funding_rate": bars["volume"][::8] * 1e-6})
    store.write_funding(Funding("BTC/USDT:USDT", rates))
    out = tmp_path / "out.json"
    result = run("--store", tmp_path, "--json-out", out)
    assert result.exit_code == 0, result.output
    reports = json.loads(out.read_text())["reports"]
    assert [(report["symbol"], report["interval"]) for report in reports] == [
        ("BTC/USDT:USDT", "1h"),
        ("BTC/USDT:USDT", ""),
    ]


def test_symbol_and_interval_can_be_named(tmp_path):
    path, out = write(tmp_path, "clean"), tmp_path / "out.json"
    result = run(path, "--symbol", "ETH/USDT", "--interval", "4h", "--json-out", out)
    assert result.exit_code == 1
    (report,) = json.loads(out.read_text())["reports"]
    assert (report["symbol"], report["interval"]) == ("ETH/USDT", "4h")
    assert [finding["number"] for finding in report["findings"]] == ["D36"]


def test_a_repair_writes_rows_and_log_and_checks_the_result(tmp_path):
    path, out = write(tmp_path, "out-of-order"), tmp_path / "sorted_1h.csv"
    before = path.read_bytes()
    result = run(path, "--repair", "sort", "--out", out)
    assert result.exit_code == 0, result.output
    assert "1 changes" in result.output
    assert path.read_bytes() == before
    rows = load_file(out).table
    for name, column in market_defects.clean_bars(0, HOUR).items():
        assert [float(x) for x in rows[name].to_pylist()] == column.tolist()
    assert (tmp_path / "sorted_1h.csv.repairs.txt").read_text().startswith("sort: row ")


@pytest.mark.refusal
def test_a_repair_needs_a_place_to_write(tmp_path):
    error = run(write(tmp_path, "gap"), "--repair", "sort").exception
    assert str(error) == (
        "`--repair` must have one file to read and `--out` to write; found 1 files and no "
        "`--out`. Repair files one by one; a file is never changed in place. [missing-argument]"
    )


@pytest.mark.refusal
def test_nothing_to_check_is_refused(tmp_path):
    error = run(tmp_path).exception
    assert isinstance(error, DataError)
    assert str(error) == (
        f"there must be files to check; found {tmp_path}. "
        "Name files, folders, or a store with `--store`. [data-missing]"
    )


def test_the_verb_is_imported_without_torch_and_arrow():
    code = (
        "import sys, stormsail.cli.data.check\n"
        "print([name for name in ('torch', 'pyarrow') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout == "[]\n"


@pytest.mark.parametrize("way", ["dots", "symbolic", "hard"])
def test_a_source_is_not_overwritten_under_another_name(tmp_path, way):
    path = write(tmp_path, "clean")
    before = path.read_bytes()
    other = tmp_path / "other.csv"
    if way == "dots":
        other = tmp_path / ".." / tmp_path.name / path.name
    elif way == "symbolic":
        other.symlink_to(path)
    else:
        other.hardlink_to(path)
    result = run(path, "--repair", "sort", "--out", other)
    assert isinstance(result.exception, DataError)
    assert result.exception.code == "data-repair"
    assert path.read_bytes() == before


@pytest.mark.refusal
def test_reports_that_cannot_be_written_are_refused_in_words(tmp_path):
    clean = write(tmp_path, "clean")
    target = clean / "report.json"
    result = run(clean, "--json-out", target)
    assert str(result.exception) == (
        f"the output {target} must be written completely; found Not a directory. Name a file in a "
        "folder that can be written, on a disk with space left. [artifact-write]"
    )


def test_logs_and_parts_of_a_fetch_are_not_data_and_suffixes_have_no_case(tmp_path):
    path = write(tmp_path, "clean")
    path.rename(tmp_path / "BARS_1h.CSV")
    (tmp_path / "x.csv.repairs.txt").write_text("row 1 dropped\n")
    (tmp_path / ".fetch-1h").mkdir()
    (tmp_path / ".fetch-1h" / "part.parquet").write_bytes(b"half")
    result = run(tmp_path)
    assert (result.exit_code, result.output) == (
        0,
        f"good {tmp_path / 'BARS_1h.CSV'}: 1500 rows, 0 errors, 0 warnings\n",
    )


def test_a_stored_file_that_was_changed_or_moved_is_refused(tmp_path):
    store = Store(tmp_path / "store")
    path = store.write(Bars("BTC/USDT", HOUR, pa.table(market_defects.clean_bars(0, HOUR))))
    assert run(path).exit_code == 0
    moved = store.path("ETH/USDT", HOUR)
    moved.parent.mkdir()
    moved.write_bytes(path.read_bytes())
    result = run(moved)
    assert (result.exit_code, "D02 truncated-file" in result.output) == (1, True)
    assert "not as the store wrote it: BTC/USDT 1h" in result.output
    table = pq.read_table(path)
    volume = pa.array(table["volume"].to_numpy() * 1.01)
    pq.write_table(table.set_column(table.column_names.index("volume"), "volume", volume), path)
    result = run(path)
    assert (result.exit_code, "D02 truncated-file" in result.output) == (1, True)
    assert "values or notes that do not fit" in result.output


def test_a_repaired_copy_of_stored_bars_carries_no_seal(tmp_path):
    store = Store(tmp_path / "store")
    path = store.write(Bars("BTC/USDT", HOUR, pa.table(market_defects.clean_bars(0, HOUR))))
    out = tmp_path / "out.parquet"
    assert run(path, "--repair", "sort", "--out", out).exit_code == 0
    assert load_file(out).notes == {"symbol": "BTC/USDT", "interval": "1h"}
