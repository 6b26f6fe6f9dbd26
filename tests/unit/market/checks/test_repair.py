"""Nothing is repaired unasked; what is repaired is written down."""

import numpy as np
import pyarrow as pa
import pytest

import market_defects
from stormsail.core.errors import ChoiceError, DataError
from stormsail.market.checks import BY_NAME, DEFECTS, RULES, check_file, check_table, repair
from stormsail.market.checks.repair import repair_file
from stormsail.market.interval import Interval

HOUR = Interval.parse("1h")
REPAIRABLE = {
    "text": "drop-invalid-rows",
    "nan-close": "drop-invalid-rows",
    "nan-ts": "drop-invalid-rows",
    "infinite-high": "drop-invalid-rows",
    "negative-price": "drop-invalid-rows",
    "zero-price": "drop-invalid-rows",
    "high-below-low": "drop-invalid-rows",
    "close-outside": "drop-invalid-rows",
    "negative-volume": "drop-invalid-rows",
    "time-unit-us": "time-unit",
    "mixed-units-s": "time-unit",
    "close-labels": "close-to-open",
    "out-of-order": "sort",
    "reversed": "sort",
    "duplicate-same": "drop-duplicates",
    "duplicate-same-far": "drop-duplicates",
    "unclosed": "drop-last-unclosed",
}


def check(table: pa.Table, now_ms: int | None):
    return check_table(table, symbol="BTC/USDT", interval=HOUR, now_ms=now_ms)


@pytest.mark.parametrize(("name", "rule"), REPAIRABLE.items())
def test_a_rule_takes_away_its_defect_and_no_price_changes(name, rule):
    case = market_defects.planted(name, 5, HOUR)
    table = case.table()
    report = check(table, case.now_ms)
    repaired, log = repair(table, report, [rule], interval=HOUR)
    after = check(repaired, case.now_ms)
    assert after.ok, after.summary()
    assert log
    assert all(line.startswith(f"{rule}: row ") for line in log)
    clean = market_defects.clean_bars(5, HOUR)
    known = {(ts, c) for ts, c in zip(clean["ts"].tolist(), clean["close"].tolist(), strict=True)}
    rows = zip(repaired["ts"].to_pylist(), repaired["close"].to_pylist(), strict=True)
    assert {(int(ts), float(c)) for ts, c in rows} <= known
    assert len(clean["ts"]) - repaired.num_rows <= 1


@pytest.mark.parametrize("name", REPAIRABLE)
def test_without_a_rule_nothing_changes(name):
    case = market_defects.planted(name, 6, HOUR)
    table = case.table()
    repaired, log = repair(table, check(table, case.now_ms), [], interval=HOUR)
    assert (repr(repaired.to_pydict()), log) == (repr(table.to_pydict()), [])  # NaN is not NaN


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_leaves_clean_bars_alone(rule):
    table = pa.table(market_defects.clean_bars(7, HOUR))
    report = check(table, 4_000_000_000_000)
    assert repair(table, report, [rule], interval=HOUR) == (table, [])


def test_the_log_names_row_time_and_old_value():
    table = pa.table(market_defects.clean_bars(0, HOUR, rows=3))
    table = table.select(["ts", "open", "high", "low", "close", "volume"])
    table = table.set_column(5, "volume", pa.array([1.0, -2.0, 3.0]))
    close, time = table["close"].to_pylist(), np.datetime64(table["ts"][1].as_py(), "ms")
    _, log = repair(table, check(table, None), ["drop-invalid-rows"], interval=HOUR)
    values = " ".join(f"{n}={table[n][1].as_py()}" for n in ("open", "high", "low"))
    expected = f"dropped, was {values} close={close[1]} volume=-2.0"
    assert log == [f"drop-invalid-rows: row 1 {str(time)[:19]}Z {expected}"]


def test_rows_in_the_log_are_those_of_the_file():
    bars = market_defects.clean_bars(0, HOUR, rows=40)
    bars["close"][10] = np.nan
    order = np.r_[0:20, 21, 20, 22:40]
    table = pa.table({name: column[order] for name, column in bars.items()})
    _, log = repair(table, check(table, None), ["sort", "drop-invalid-rows"], interval=HOUR)
    assert [line.split()[:3] for line in log] == [
        ["drop-invalid-rows:", "row", "10"],
        ["sort:", "row", "21"],
    ]


def test_different_duplicates_stay():
    case = market_defects.planted("duplicate-different", 1, HOUR)
    table = case.table()
    repaired, log = repair(table, check(table, None), ["drop-duplicates"], interval=HOUR)
    assert (repaired.num_rows, log) == (table.num_rows, [])


@pytest.mark.refusal
def test_sorting_a_shifted_block_is_refused():
    table = market_defects.planted("shifted-block", 1, HOUR).table()
    with pytest.raises(DataError) as caught:
        repair(table, check(table, None), ["sort"], interval=HOUR)
    assert str(caught.value) == (
        "BTC/USDT 1h must not be sorted while its times are wrong; found shifted-block. "
        "Export the file in UTC first; sorting would mix shifted rows with the others. "
        "[data-repair]"
    )


@pytest.mark.refusal
def test_an_unknown_rule_is_refused_with_the_nearest_one():
    table = pa.table(market_defects.clean_bars(0, HOUR))
    with pytest.raises(ChoiceError) as caught:
        repair(table, check(table, None), ["drop-duplicate"], interval=HOUR)
    assert str(caught.value) == (
        f"a repair rule must be one of {', '.join(RULES)}; found `drop-duplicate`, did you mean "
        "`drop-duplicates`?. Name one of them; there are none that fill gaps or change prices. "
        "[unknown-choice]"
    )


@pytest.mark.refusal
def test_a_table_without_prices_cannot_be_repaired():
    table = pa.table({"ts": [1, 2], "open": [1.0, 2.0]})
    with pytest.raises(DataError, match="no column high, low, close"):
        repair(table, check(table, None), ["sort"], interval=HOUR)


def test_a_repaired_file_is_another_file_and_its_log_lies_beside_it(tmp_path):
    source, target = tmp_path / "bars_1h.csv", tmp_path / "new" / "bars_1h.parquet"
    content = market_defects.planted("duplicate-header", 3, HOUR).content
    source.write_bytes(content)
    log = repair_file(source, target, ["drop-duplicate-header"])
    assert source.read_bytes() == content
    assert (target.parent / "bars_1h.parquet.repairs.txt").read_text() == log[0] + "\n"
    assert len(log) == 1
    report = check_file(target)
    assert (report.findings, report.rows) == ((), 1500)


@pytest.mark.refusal
def test_a_file_is_never_repaired_in_place(tmp_path):
    source = tmp_path / "bars.csv"
    source.write_bytes(market_defects.csv(market_defects.clean_bars(0, HOUR)))
    with pytest.raises(DataError) as caught:
        repair_file(source, source, ["sort"])
    assert str(caught.value) == (
        "repaired rows must go to another file that ends in .csv or .parquet; found "
        f"{source} to {source}. Name such a file with `--out`. [data-repair]"
    )


def test_every_rule_of_a_defect_exists_and_every_rule_has_a_defect():
    named = {defect.rule for defect in DEFECTS if defect.rule}
    assert named == set(RULES)
    assert BY_NAME["gap"].rule is None
