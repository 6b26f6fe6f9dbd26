"""Whatever the bytes are, the answer is a report or a refusal, and it comes soon."""

import json
import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import market_defects
from stormsail.core.errors import DataError, StormsailError
from stormsail.market.checks import Report, check_file, check_table, repair
from stormsail.market.checks.repair import RULES
from stormsail.market.interval import Interval

HOUR = Interval.parse("1h")
SMALL = market_defects.clean_bars(0, HOUR, rows=40)
WHOLE = {kind: write(SMALL) for kind, (_, write) in market_defects.FORMATS.items()}
SECONDS = 1.0

hostile = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def survive(content: bytes, suffix: str, folder) -> None:
    path = folder / f"bars{suffix}"
    path.write_bytes(content)
    started = time.monotonic()
    try:
        report = check_file(path, now_ms=4_000_000_000_000)
    except StormsailError:
        return
    finally:
        assert time.monotonic() - started < SECONDS
    assert isinstance(report, Report)
    assert json.dumps(report.as_dict())
    assert report.summary().startswith(str(path))


@hostile
@given(content=st.binary(max_size=400), kind=st.sampled_from(list(market_defects.FORMATS)))
def test_random_bytes_are_reported_or_refused(content, kind, tmp_path):
    survive(content, market_defects.FORMATS[kind][0], tmp_path)


@hostile
@given(
    kind=st.sampled_from(list(market_defects.FORMATS)),
    edits=st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 8), st.binary(max_size=8)), min_size=1, max_size=6
    ),
)
def test_mutated_files_are_reported_or_refused(kind, edits, tmp_path):
    content = WHOLE[kind]
    for where, gone, new in edits:
        at = int(where * len(content))
        content = content[:at] + new + content[at + gone :]
    survive(content, market_defects.FORMATS[kind][0], tmp_path)


CELLS = st.one_of(
    st.sampled_from(
        [
            "",
            "nan",
            "inf",
            "-inf",
            "1e400",
            "-0",
            "ts",
            "1,5",
            "2021-01-01",
            "9" * 30,
            '"',
            "é",
            "\x01",
        ]
    ),
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(repr),
    st.text(max_size=5),
)


@hostile
@given(
    rows=st.lists(st.lists(CELLS, min_size=1, max_size=8), max_size=12),
    separator=st.sampled_from([",", ";", "\t"]),
)
def test_csv_of_hostile_cells_is_reported_or_refused(rows, separator, tmp_path):
    head = separator.join(["ts", "open", "high", "low", "close", "volume"])
    lines = [head, *(separator.join(row) for row in rows)]
    survive("\n".join(lines).encode("utf-8", "surrogatepass"), ".csv", tmp_path)


@given(
    st.lists(
        st.tuples(st.integers(-(2**63), 2**63 - 1), *[st.floats() for _ in range(5)]),
        min_size=1,
        max_size=30,
    ),
    st.sampled_from(list(RULES)),
)
def test_tables_of_any_numbers_are_reported_and_repaired_without_a_crash(rows, rule):
    names = ("ts", "open", "high", "low", "close", "volume")
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    table = pa.table(
        {n: pa.array(c, pa.int64() if n == "ts" else pa.float64()) for n, c in columns.items()}
    )
    report = check_table(table, symbol="X", interval=HOUR, now_ms=1_700_000_000_000)
    try:
        repaired, _ = repair(table, report, [rule], interval=HOUR)
    except DataError:
        return
    assert repaired.num_rows <= table.num_rows


@pytest.mark.parametrize(
    "kind",
    [
        pa.array([[1], [2]]),
        pa.array([b"a", b"b"]),
        pa.array([True, False]),
        pa.array(["1", "2"]).dictionary_encode(),
        pa.array([None, None]),
        pa.array([{"a": 1}, None]),
        pa.array([1, 2], pa.uint64()),
        pa.array([1.5, None], pa.float32()),
    ],
)
@pytest.mark.parametrize("name", ["ts", "open", "volume"])
def test_columns_of_any_type_are_reported(name, kind):
    table = pa.table({n: c[:2] for n, c in SMALL.items()})
    table = table.set_column(table.column_names.index(name), name, kind)
    report = check_table(table, symbol="X", interval=HOUR)
    assert report.rows == 2


def test_a_table_of_no_chunks_is_empty():
    table = pa.schema([(name, pa.float64()) for name in SMALL]).empty_table()
    assert check_table(table, symbol="X", interval=HOUR).numbers == ("D01",)


def test_a_zip_of_several_files_is_refused(tmp_path):
    import zipfile

    path = tmp_path / "bars.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.csv", "1")
        archive.writestr("b.csv", "2")
    with pytest.raises(DataError, match=r"must hold one file; found 2 of them"):
        check_file(path)


@pytest.mark.refusal
def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(DataError) as caught:
        check_file(tmp_path / "none.csv")
    assert str(caught.value) == (
        f"{tmp_path / 'none.csv'} must be a file that can be read; found No such file or "
        "directory. Check the path and its permissions. [data-missing]"
    )


def test_binance_dumps_need_no_header(tmp_path):
    path = tmp_path / "BTCUSDT-1h-2021-01.csv"
    ignored = np.zeros(40, np.int64)
    columns = {
        **{name: SMALL[name] for name in ("ts", "open", "high", "low", "close", "volume")},
        "close_time": SMALL["ts"] + 3_599_999,
        **{n: SMALL[n] for n in ("quote_volume", "trades", "taker_buy_base", "taker_buy_quote")},
        "ignore": ignored,
    }
    path.write_bytes(market_defects.csv(columns).split(b"\n", 1)[1])
    report = check_file(path)
    assert (report.findings, report.rows, report.interval) == ((), 40, "1h")
    assert report.symbol == "BTCUSDT"
