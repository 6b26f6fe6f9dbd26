"""Files and frames of others: recognised or refused, never mended."""

import gzip
import zipfile
from pathlib import PurePath

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from stormsail.core.clock import ManualClock
from stormsail.core.errors import DataError
from stormsail.market.bars import Bars, Funding, Mark
from stormsail.market.checks.units import to_milliseconds
from stormsail.market.importers import Options, from_frame, import_files
from stormsail.market.importers.columns import parse_columns
from stormsail.market.importers.merge import with_stored
from stormsail.market.importers.names import QUOTES, read_name, split_pair
from stormsail.market.interval import Interval

H = 3_600_000
START = 1_609_459_200_000  # 2021-01-01T00:00Z
NEW_YEAR = 1_735_689_600_000  # 2025-01-01T00:00Z
HOUR = Interval.parse("1h")
PER_MS = {"s": 1e-3, "ms": 1, "us": 1_000, "ns": 1_000_000}
HEADER = (
    "open_time,open,high,low,close,volume,close_time,quote_volume,count,"
    "taker_buy_volume,taker_buy_quote_volume,ignore"
)


@pytest.fixture
def pd():
    import pandas  # loaded by the tests that need it, not by those who collect

    return pandas


@pytest.fixture
def pl():
    import polars

    return polars


def rows(count: int = 24, start: int = START) -> list[dict[str, float]]:
    """Plausible bars: prices with two decimals, volumes that fit them."""
    made = []
    for i in range(count):
        first, last = 100 + (i * 7 % 11) / 4, 100 + ((i + 1) * 7 % 11) / 4
        bar = {"ts": start + i * H, "open": first, "high": max(first, last) + 0.25}
        bar |= {"low": min(first, last) - 0.25, "close": last, "volume": 10.0 + i % 5}
        bar |= {"quote_volume": (10.0 + i % 5) * (first + last) / 2, "trades": 20 + i}
        bar |= {"taker_buy_base": 4.0, "taker_buy_quote": 4.0 * (first + last) / 2}
        made.append(bar)
    return made


def in_unit(ts: int, unit: str) -> int:
    return int(ts * PER_MS[unit])


def kline(bar: dict[str, float], unit: str = "ms") -> str:
    close_time = in_unit(bar["ts"] + H, unit) - 1
    middle = [bar[name] for name in ("open", "high", "low", "close", "volume")]
    rest = [bar[name] for name in ("quote_volume", "trades", "taker_buy_base", "taker_buy_quote")]
    return ",".join(map(str, [in_unit(bar["ts"], unit), *middle, close_time, *rest, 0]))


def klines(bars: list[dict[str, float]], unit: str = "ms", *, headers: int = 0) -> str:
    return "".join(
        f"{line}\n" for line in [*[HEADER] * headers, *(kline(bar, unit) for bar in bars)]
    )


def plain(bars: list[dict[str, float]], unit: str = "ms", delimiter: str = ",") -> str:
    names = ("ts", "open", "high", "low", "close", "volume")
    lines = [delimiter.join(names)]
    for bar in bars:
        cells = [in_unit(bar["ts"], unit), *(bar[name] for name in names[1:])]
        lines.append(delimiter.join(map(str, cells)))
    return "\n".join(lines) + "\n"


def write(folder, name: str, text: str | bytes):
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def single(sources, options: Options | None = None, **words) -> Bars:
    imported = import_files(sources if isinstance(sources, list) else [sources], options, **words)
    assert len(imported) == 1
    assert isinstance(imported[0].data, Bars)
    return imported[0].data


def refusal(call) -> DataError:
    with pytest.raises(DataError) as caught:
        call()
    return caught.value


def same(bars: Bars, expected: list[dict[str, float]]) -> bool:
    return bars.table.to_pylist() == [
        {name: bar[name] for name in bars.columns} for bar in expected
    ]


# names


@pytest.mark.parametrize(
    ("name", "symbol", "interval", "kind"),
    [
        ("BTCUSDT-1h-2024-01.zip", "BTC/USDT", "1h", "bars"),
        ("BTCUSDT-1h-2024-01-05.csv", "BTC/USDT", "1h", "bars"),
        ("1000PEPEUSDT-15m-2024-01.csv.gz", "1000PEPE/USDT", "15m", "bars"),
        ("BTC_USDT-1h.feather", "BTC/USDT", "1h", "bars"),
        ("BTC_USDT_USDT-1h-futures.feather", "BTC/USDT:USDT", "1h", "bars"),
        ("BTC_USDT_USDT-8h-funding_rate.feather", "BTC/USDT:USDT", "8h", "funding"),
        ("BTC_USDT_USDT-1h-mark.feather", "BTC/USDT:USDT", "1h", "other"),
        ("ETHBTC_4h.parquet", "ETH/BTC", "4h", "bars"),
        ("btcfdusd-1d.csv", "BTC/FDUSD", "1d", "bars"),
        ("BTC-USDT_1h.csv", "BTC/USDT", "1h", "bars"),
        ("WBTC_USDT 5m.csv", "WBTC/USDT", "5m", "bars"),
        ("Binance_BTCUSDT_1h.csv", "BTC/USDT", "1h", "bars"),
        ("BTC-USDT/1h.parquet", "BTC/USDT", "1h", "bars"),
        ("BTC-USDT_USDT/funding.parquet", "BTC/USDT:USDT", None, "funding"),
        ("BTCUSDT_funding.parquet", "BTC/USDT:USDT", None, "funding"),
        ("BTCUSDT-fundingRate-2024-01.zip", "BTC/USDT:USDT", None, "funding"),
        ("BTCUSDT_trades.parquet", "BTC/USDT", None, "other"),
        ("BTC-PERP_1m.parquet", None, "1m", "bars"),
        ("bars.csv", None, None, "bars"),
        ("BTCUSD_PERP-1h-2024-01.zip", "BTC/USD:BTC", "1h", "bars"),
        ("BTC-USDT-SWAP_1h.csv", "BTC/USDT:USDT", "1h", "bars"),
        ("BTC_USDT_PERP-1h.csv", "BTC/USDT:USDT", "1h", "bars"),
        ("PERP-USDT_1h.csv", "PERP/USDT", "1h", "bars"),
        ("my_DATA_BTC_1h.csv", None, "1h", "bars"),
        ("DATA_BTC_1h.csv", "DATA/BTC", "1h", "bars"),
    ],
)
def test_a_name_tells_symbol_interval_and_kind(name, symbol, interval, kind):
    named = read_name(PurePath(name))
    assert named.symbol(None) == symbol
    assert named.interval == (Interval.parse(interval) if interval else None)
    assert named.kind == kind


def test_the_market_decides_what_a_pair_means_unless_the_name_does():
    assert read_name(PurePath("BTCUSDT-1h.csv")).symbol("perp") == "BTC/USDT:USDT"
    assert read_name(PurePath("BTCUSDT-1h.csv")).symbol("spot") == "BTC/USDT"
    futures = read_name(PurePath("BTC_USDT_USDT-1h-futures.feather"))
    assert refusal(lambda: futures.symbol("spot")).code == "data-symbol"


def test_every_quote_splits_a_pair_and_the_longest_wins():
    for quote in QUOTES:
        assert split_pair(f"XYZ{quote}") == ("XYZ", quote)
        assert split_pair(quote) is None or split_pair(quote)[1] != quote
    assert split_pair("USDCUSDT") == ("USDC", "USDT")
    assert split_pair("BTCFDUSD") == ("BTC", "FDUSD")
    assert split_pair("NOTHING") is None


@pytest.mark.refusal
@pytest.mark.parametrize("name", ["BTCUSDT_240329-1h.csv", "BTC_USDT_240329-1h.csv"])
def test_a_dated_future_is_refused_until_its_symbol_is_stated(name, tmp_path):
    path = write(tmp_path, name, plain(rows()))
    error = refusal(lambda: single(path))
    assert error.code == "data-symbol"
    assert error.found == "the name of a future of BTC/USDT that ends on a day, `240329`"
    assert single(path, symbol="BTC/USDT:USDT").symbol == "BTC/USDT:USDT"


@pytest.mark.refusal
def test_columns_are_refused_for_a_binance_dump(tmp_path):
    path = write(tmp_path, "BTCUSDT-1h.csv", klines(rows()))
    error = refusal(lambda: single(path, Options(columns={"open": "close"})))
    assert error.code == "data-column"
    assert error.found == "`open=close`"


def test_the_log_of_repairs_is_no_source(tmp_path):
    path = write(tmp_path, "BTCUSDT_1h.csv", plain(rows()))
    log = write(tmp_path, "BTCUSDT_1h.csv.repairs.txt", "row 3 dropped")
    for sources in ([tmp_path], [path, log], [str(tmp_path / "*")]):
        assert same(single(sources), rows())


# Binance


@pytest.mark.parametrize("headers", [0, 1, 2])
@pytest.mark.parametrize("unit", ["ms", "us"])
@pytest.mark.parametrize("pack", ["csv", "zip", "csv.gz"])
def test_a_binance_dump_is_read(headers, unit, pack, tmp_path):
    text = klines(rows(), unit, headers=headers)
    path = tmp_path / f"BTCUSDT-1h-2021-01.{pack}"
    if pack == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("BTCUSDT-1h-2021-01.csv", text)
    else:
        path.write_bytes(gzip.compress(text.encode()) if pack.endswith("gz") else text.encode())
    bars = single(path)
    assert (bars.symbol, bars.interval) == ("BTC/USDT", HOUR)
    assert same(bars, rows())
    assert bars.columns[6:] == ("quote_volume", "trades", "taker_buy_base", "taker_buy_quote")
    assert bars.notes["time_unit"] == unit
    doubled = "header line 2 times at the top, read once"
    assert (doubled in bars.notes.get("remarks", "")) is (headers == 2)


def test_a_folder_a_pattern_and_a_list_are_the_same_files_in_order(tmp_path):
    bars = rows(72)
    for day in (2, 0, 1):
        write(
            tmp_path, f"BTCUSDT-1h-2021-01-0{day + 1}.csv", klines(bars[day * 24 : day * 24 + 24])
        )
    listed = sorted(tmp_path.iterdir(), reverse=True)
    whole = single(listed)
    assert same(whole, bars)
    assert single(tmp_path).digest() == whole.digest()
    assert single(str(tmp_path / "BTC*-01-*.csv")).digest() == whole.digest()
    assert single([tmp_path, *listed]).digest() == whole.digest()  # each file once
    assert (
        whole.notes["source"] == "BTCUSDT-1h-2021-01-01.csv to BTCUSDT-1h-2021-01-03.csv, 3 files"
    )


def test_files_before_and_after_the_switch_are_joined_and_both_units_noted(tmp_path):
    bars = rows(48, NEW_YEAR - 24 * H)
    write(tmp_path, "BTCUSDT-1h-2024-12.csv", klines(bars[:24], "ms"))
    write(tmp_path, "BTCUSDT-1h-2025-01.csv", klines(bars[24:], "us", headers=1))
    joined = single(tmp_path)
    assert same(joined, bars)
    assert joined.notes["time_unit"] == "ms and us"


def test_the_switch_inside_one_spot_file_is_converted_and_said(tmp_path):
    bars = rows(48, NEW_YEAR - 24 * H)
    text = klines(bars[:24], "ms") + klines(bars[24:], "us")
    imported = import_files([write(tmp_path, "BTCUSDT-1h.csv", text)])[0]
    assert same(imported.data, bars)
    remark = "BTCUSDT-1h.csv: ms before 2025-01-01 and us from then on, as Binance switched"
    assert remark in imported.lines
    assert imported.data.notes["remarks"] == remark
    assert imported.data.notes["time_unit"] == "ms and us"


@pytest.mark.parametrize(
    ("name", "start", "units", "market"),
    [
        ("BTCUSDT-1h.csv", NEW_YEAR - 24 * H, "msus", "perp"),  # futures never switched
        (
            "BTCUSDT-1h.csv",
            NEW_YEAR - 25 * H,
            "msus",
            "spot",
        ),  # ms after the switch... us before it
        ("BTCUSDT-1h.csv", NEW_YEAR - 23 * H, "msus", "spot"),
        ("BTCUSDT-1h.csv", NEW_YEAR - 24 * H, "usms", "spot"),
        ("BTCUSDT-1h.csv", NEW_YEAR - 24 * H, "mss_", "spot"),
    ],
)
def test_any_other_mixture_of_units_is_a_defect(name, start, units, market, tmp_path):
    bars = rows(48, start)
    first, second = units[:2], units[2:].strip("_")
    path = write(tmp_path, name, klines(bars[:24], first) + klines(bars[24:], second))
    error = refusal(lambda: single(path, market=market))
    assert error.code == "data-defects"
    assert "mixed-time-units" in error.found


def test_the_switch_in_a_file_that_is_not_binances_is_a_defect(tmp_path):
    bars = rows(48, NEW_YEAR - 24 * H)
    text = plain(bars[:24], "ms") + "".join(plain(bars[24:], "us").splitlines(True)[1:])
    path = write(tmp_path, "BTCUSDT-1h.csv", text)
    error = refusal(lambda: single(path))
    assert error.code == "data-defects"
    assert same(single(path, Options(repair=("time-unit",))), bars)


def test_a_mixture_over_several_files_of_which_one_is_mixed_is_refused(tmp_path):
    bars = rows(48)
    write(tmp_path, "BTCUSDT-1h-2021-01.csv", klines(bars[:12]) + klines(bars[12:24], "us"))
    write(tmp_path, "BTCUSDT-1h-2021-02.csv", klines(bars[24:]))
    error = refusal(lambda: single(tmp_path))
    assert error.code == "data-time-unit"
    assert error.found == f"ms in row 0 ({START}) and us in row 12 ({(START + 12 * H) * 1000})"


# what the checks must see


def broken(index: int, **cells) -> list[dict[str, float]]:
    bars = rows()
    bars[index] |= cells
    return bars


@pytest.mark.parametrize(
    ("bars", "defect"),
    [
        ([*rows(), rows()[-1]], "duplicate-same"),
        ([*rows(), {**rows()[-1], "close": 101.0}], "duplicate-different"),
        ([*rows()[:5], rows()[6], rows()[5], *rows()[7:]], "out-of-order"),
        (broken(3, open="nan"), "missing-value"),
        (broken(3, open=""), "missing-value"),
        (broken(3, close="n/a"), "text-value"),
        (broken(3, close="inf"), "infinite-value"),
        (broken(3, low=-1.0), "negative-price"),
        (broken(3, high=1.0), "high-below-low"),
        (broken(3, volume=-1.0), "negative-volume"),
        (broken(3, ts=START + 3 * H + 60_000), "misaligned-bar"),
    ],
)
def test_defects_reach_the_checks_untouched(bars, defect, tmp_path):
    path = write(tmp_path, "BTCUSDT_1h.csv", plain(bars))
    error = refusal(lambda: single(path))
    assert error.code == "data-defects"
    assert defect in error.found
    assert "`stormsail check FILE`" in error.remedy


def test_text_in_one_of_several_files_is_not_lost_when_they_are_joined(tmp_path):
    bars = rows(48)
    bars[30]["open"] = "oops"
    write(tmp_path, "BTCUSDT_1h_a.csv", plain(bars[:24]))
    write(tmp_path, "BTCUSDT_1h_b.csv", plain(bars[24:]))
    assert "oops" in refusal(lambda: single(tmp_path)).found


def test_text_in_the_time_column_is_a_defect(tmp_path):
    lines = plain(rows()).splitlines(keepends=True)
    path = write(tmp_path, "BTCUSDT_1h.csv", "".join([*lines[:9], lines[0], *lines[9:]]))
    assert "duplicate-header" in refusal(lambda: single(path)).found


def test_a_named_repair_is_applied_and_said(tmp_path):
    bars = rows()
    path = write(tmp_path, "BTCUSDT_1h.csv", plain([*bars, bars[-1]]))
    imported = import_files([path], Options(repair=("drop-duplicates",)))[0]
    assert same(imported.data, bars)
    assert any(line.startswith("repaired: ") for line in imported.lines)
    assert imported.data.notes["repaired"]


def test_a_repair_that_does_not_help_still_refuses(tmp_path):
    path = write(tmp_path, "BTCUSDT_1h.csv", plain(broken(3, close="n/a")))
    assert refusal(lambda: single(path, Options(repair=("sort",)))).code == "data-defects"


def test_gaps_are_kept_and_said(tmp_path):
    path = write(tmp_path, "BTCUSDT_1h.csv", plain([*rows()[:5], *rows()[8:]]))
    imported = import_files([path])[0]
    assert len(imported.data) == 21
    assert any("gap" in line for line in imported.lines)


def test_times_that_only_the_importer_cannot_read_are_refused_all_the_same(tmp_path):
    lines = plain(rows()).splitlines()
    broken = [line.replace(",", ".5,", 1) if row > 3 else line for row, line in enumerate(lines)]
    path = write(tmp_path, "BTCUSDT_1h.csv", "\n".join(broken))
    assert refusal(lambda: single(path)).code in {"data-time-unit", "data-defects"}
    stamps = [f"2021-01-01T{hour:02}:00:00{'Z' if hour < 12 else ''}" for hour in range(24)]
    body = [
        f"{when},{line.partition(',')[2]}" for when, line in zip(stamps, lines[1:], strict=True)
    ]
    mixed = write(tmp_path, "ETHUSDT_1h.csv", "\n".join([lines[0], *body]))
    error = refusal(lambda: single(mixed))
    assert error.code == "data-type"
    assert error.wrong == (
        "the times of ETHUSDT_1h.csv must be numbers, timestamps or ISO 8601 text"
    )


# the last bar


def at(ts_ms: int) -> Options:
    return Options(clock=ManualClock(ts_ms * 1_000_000))


def test_a_bar_that_has_not_closed_is_dropped_and_said(tmp_path):
    path = write(tmp_path, "BTCUSDT_1h.csv", plain(rows()))
    end = START + 24 * H
    assert len(single(path, at(end))) == 24
    imported = import_files([path], at(end - 1))[0]
    assert same(imported.data, rows()[:23])
    assert "dropped: the bar of 2021-01-01T23:00:00Z" in "\n".join(imported.lines)
    assert len(single(path)) == 24


def test_bars_of_the_future_are_refused(tmp_path):
    path = write(tmp_path, "BTCUSDT_1h.csv", plain(rows()))
    error = refusal(lambda: single(path, at(START + 22 * H)))
    assert error.code == "data-defects"
    assert "row 23 at 2021-01-01T23:00:00Z" in error.found


def test_an_unclosed_bar_is_dropped_wherever_repairs_leave_it(tmp_path):
    bars = rows()
    path = write(tmp_path, "BTCUSDT_1h.csv", plain([bars[23], *bars[:23]]))
    clock = at(START + 24 * H - 1).clock
    imported = import_files([path], Options(repair=("sort",), clock=clock))[0]
    assert same(imported.data, bars[:23])
    assert "duplicate" not in "\n".join(imported.lines)
    twice = write(tmp_path, "ETHUSDT_1h.csv", plain([*bars, bars[23]]))
    assert same(single(twice, at(START + 24 * H - 1)), bars[:23])


def test_future_bars_in_a_unit_that_a_repair_mends_are_refused(tmp_path):
    bars = rows(48, NEW_YEAR - 24 * H)
    text = plain(bars[:24], "ms") + "".join(plain(bars[24:], "us").splitlines(True)[1:])
    path = write(tmp_path, "BTCUSDT-1h.csv", text)
    clock = at(NEW_YEAR).clock
    error = refusal(lambda: single(path, Options(repair=("time-unit",), clock=clock)))
    assert error.code == "data-defects"
    assert "which is after 2025-01-01T00:00:00Z; 23 such rows" in error.found


@pytest.mark.refusal
def test_a_message_has_one_full_stop_where_its_parts_meet(tmp_path):
    # No repair is offered for this one, so that the finding ends with its own full stop.
    bars = [*rows(), {**rows()[-1], "close": 101.0}]
    error = refusal(lambda: single(write(tmp_path, "BTCUSDT_1h.csv", plain(bars))))
    assert "duplicate-different" in error.found
    assert ".. " not in str(error)
    assert "?. " not in str(error)


# other files


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("change", ["", "bom", "crlf", "no-newline", "blank"])
def test_plain_text_of_any_delimiter_and_unit_is_read(delimiter, unit, change, tmp_path):
    text = plain(rows(), unit, delimiter)
    text = {
        "bom": "\ufeff" + text,
        "crlf": text.replace("\n", "\r\n"),
        "no-newline": text.rstrip(),
        "blank": "\n" + text + "\n\n",
    }.get(change, text)
    bars = single(write(tmp_path, "BTCUSDT_1h.csv", text))
    assert same(bars, rows())
    assert bars.notes["time_unit"] == unit


def test_columns_can_be_named_and_strangers_are_said(tmp_path):
    text = plain(rows()).replace("ts,open", "when,first").replace("volume", "amount")
    path = write(tmp_path, "x.csv", text)
    words = {"symbol": "BTC/USDT", "interval": HOUR}
    error = refusal(lambda: single(path, **words))
    assert (error.code, error.found) == (
        "data-column",
        "when, first, high, low, close, amount; ts, open, volume missing",
    )
    columns = parse_columns("ts=when, open=first,volume=amount")
    assert same(single(path, Options(columns=columns), **words), rows())
    missing = Options(columns={**columns, "trades": "n"})
    assert refusal(lambda: single(path, missing, **words)).code == "data-column"
    extra = write(
        tmp_path,
        "y.csv",
        plain(rows()).replace("volume", "volume,colour", 1).replace(".0\n", ".0,red\n"),
    )
    assert "y.csv: not read: colour" in import_files([extra], **words)[0].lines


@pytest.mark.parametrize("text", ["", "ts", "ts=", "=x", "when=ts", "ts=a;open=b,"])
def test_a_mapping_that_cannot_be_read_is_refused(text):
    assert refusal(lambda: parse_columns(text)).code == "data-column"


def test_two_columns_that_could_be_the_time_are_refused_until_one_is_chosen(tmp_path):
    lines = plain(rows()).splitlines()
    text = "\n".join(
        ["timestamp,date" + lines[0][2:], *(f"{x.split(',')[0]},{x}" for x in lines[1:])]
    )
    path = write(tmp_path, "BTCUSDT_1h.csv", text)
    assert refusal(lambda: single(path)).code == "data-column"
    assert same(single(path, Options(columns={"ts": "date"})), rows())


@pytest.mark.parametrize(
    ("form", "zoned"),
    [
        ("%Y-%m-%dT%H:%M:%SZ", True),
        ("%Y-%m-%d %H:%M:%S+00:00", True),
        ("%Y-%m-%d %H:%M:%S", False),
        ("%Y-%m-%dT%H:%M", False),
    ],
)
def test_written_times_need_a_zone_or_the_users_word(form, zoned, tmp_path, pd):
    lines = plain(rows()).splitlines()
    stamps = pd.to_datetime([bar["ts"] for bar in rows()], unit="ms", utc=True).strftime(form)
    body = [
        f"{when},{line.partition(',')[2]}" for when, line in zip(stamps, lines[1:], strict=True)
    ]
    path = write(tmp_path, "BTCUSDT_1h.csv", "\n".join([lines[0], *body]))
    stated = single(path, Options(time_unit="iso"))
    assert same(stated, rows())
    assert ("read as UTC, as asked" in stated.notes.get("remarks", "")) is not zoned
    if zoned:
        assert same(single(path), rows())
    else:
        error = refusal(lambda: single(path))
        assert error.code == "data-time-zone"
        assert "`--time-unit iso`" in error.remedy


def test_a_time_in_another_zone_is_converted(tmp_path):
    times = pa.chunked_array([pa.array(["2021-01-01T02:00:00+02:00", "2020-12-31T20:00-05:00"])])
    result = to_milliseconds(times, unit=None, place="x")
    assert result.column.to_pylist() == [START, START + H]


@pytest.mark.parametrize("suffix", ["parquet", "feather"])
@pytest.mark.parametrize("kind", ["int64", "stamp"])
def test_tables_are_read(suffix, kind, tmp_path):
    table = pa.Table.from_pylist(rows())
    if kind == "stamp":
        stamps = table["ts"].cast(pa.timestamp("ms", "UTC"))
        table = table.set_column(0, "date", stamps)
    path = tmp_path / f"BTC_USDT-1h.{suffix}"
    writer = pq.write_table if suffix == "parquet" else pyarrow.feather.write_feather
    writer(table, path)
    assert same(single(path), rows())


def test_a_freqtrade_file_written_by_pandas_is_read(tmp_path, pd):
    frame = pd.DataFrame(rows())[["ts", "open", "high", "low", "close", "volume"]]
    frame.insert(0, "date", pd.to_datetime(frame.pop("ts"), unit="ms", utc=True))
    path = tmp_path / "BTC_USDT_USDT-1h-futures.feather"
    frame.to_feather(path, compression="lz4")
    bars = single(path)
    assert bars.symbol == "BTC/USDT:USDT"
    assert same(bars, rows())


@pytest.mark.parametrize("column", ["open", "funding_rate"])
def test_freqtrade_funding_is_read_from_old_and_new_files(column, tmp_path, pd):
    dates = pd.to_datetime([START + i * 8 * H for i in range(6)], unit="ms", utc=True)
    rate = [1e-4, -1e-4, 0.0, 3e-4, 1e-4, 2e-4]
    frame = pd.DataFrame({"date": dates, column: rate})
    if column == "open":
        frame = frame.assign(high=0.0, low=0.0, close=0.0, volume=0.0)
    frame.to_feather(tmp_path / "BTC_USDT_USDT-8h-funding_rate.feather")
    imported = import_files([tmp_path])[0]
    assert isinstance(imported.data, Funding)
    assert imported.data.symbol == "BTC/USDT:USDT"
    assert imported.data.ts.tolist() == [START + i * 8 * H for i in range(6)]
    assert imported.data.rate.tolist() == rate


def test_binance_funding_is_read_with_its_times_as_they_are(tmp_path):
    text = "calc_time,funding_interval_hours,last_funding_rate\n"
    text += "".join(f"{START + i * 8 * H + i % 3},8,0.0001\n" for i in range(6))
    path = write(tmp_path, "BTCUSDT-fundingRate-2021-01.csv", text)
    funding = import_files([path], market="perp")[0].data
    assert (funding.symbol, len(funding)) == ("BTC/USDT:USDT", 6)
    assert funding.ts.tolist() == [START + i * 8 * H + i % 3 for i in range(6)]
    assert refusal(lambda: import_files([path], symbol="BTC/USDT")).code == "data-symbol"


@pytest.mark.parametrize("body", ["1,0.1\n1,0.1\n", "2,0.1\n1,0.1\n", "1,x\n", "1,nan\n", "1,\n"])
def test_funding_with_defects_is_refused(body, tmp_path):
    times = {"1": START, "2": START + 8 * H}
    lines = [line.split(",") for line in body.splitlines()]
    text = "ts,funding_rate\n" + "".join(f"{times[a]},{b}\n" for a, b in lines)
    path = write(tmp_path, "BTCUSDT_funding.csv", text)
    assert refusal(lambda: import_files([path])).code == "data-defects"


def test_a_folder_of_several_symbols_gives_each_its_own_and_says_what_it_left_out(tmp_path):
    for name in ("BTCUSDT_1h.csv", "ETHUSDT_1h.csv", "ETHUSDT_mark.csv", "notes.md"):
        write(tmp_path, name, plain(rows()))
    imported = import_files([tmp_path])
    assert [result.data.symbol for result in imported] == ["BTC/USDT", "ETH/USDT"]
    left = "left out: ETHUSDT_mark.csv, which is named as neither bars nor funding"
    assert imported[0].lines[0] == left
    alone = refusal(lambda: import_files([tmp_path / "ETHUSDT_mark.csv"]))
    assert alone.code == "data-source"


def test_files_of_two_symbols_are_never_joined_under_one(tmp_path):
    for name in ("BTCUSDT_1h_a.csv", "ETHUSDT_1h_b.csv"):
        write(tmp_path, name, plain(rows()))
    error = refusal(lambda: import_files([tmp_path], symbol="BTC/USDT"))
    assert (error.code, error.found) == ("data-symbol", "names that tell of BTC/USDT, ETH/USDT")


def test_files_with_different_columns_are_not_joined(tmp_path):
    write(tmp_path, "BTCUSDT-1h-a.csv", plain(rows()))
    write(tmp_path, "BTCUSDT-1h-b.csv", klines(rows(24, START + 24 * H)))
    assert refusal(lambda: single(tmp_path)).code == "data-column"


def test_the_users_symbol_wins_over_the_name_and_that_is_said(tmp_path):
    path = write(tmp_path, "LUNAUSDT_1h.csv", plain(rows()))
    imported = import_files([path], symbol="LUNC/USDT")[0]
    assert imported.data.symbol == "LUNC/USDT"
    assert "note: the file's name says LUNA/USDT" in imported.lines


@pytest.mark.refusal
def test_what_is_not_known_must_be_given(tmp_path):
    path = write(tmp_path, "x.csv", plain(rows()))
    assert str(refusal(lambda: single(path))) == (
        "the symbol of x.csv must be known; found a name that does not tell it. State it, such as "
        "`--symbol BTC/USDT`. [data-symbol]"
    )
    assert str(refusal(lambda: single(path, symbol="BTC/USDT"))) == (
        "the interval of x.csv must be known; found a name that does not tell it. State it, such "
        "as `--interval 1h`. [data-interval]"
    )
    named = write(tmp_path, "BTCUSDT_1h.csv", plain(rows()))
    assert str(refusal(lambda: single(named, interval=Interval.parse("4h")))) == (
        "the interval of BTCUSDT_1h.csv must be the one in its name; found `4h`. Leave it out; to "
        "get longer bars, write `--resample 4h`. [data-interval]"
    )


# damaged and hostile files


def zipped(*members: tuple[str, bytes]) -> bytes:
    import io

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


GOOD = plain(rows()).encode()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("csv", b""),
        ("csv", b"\n\n"),
        ("csv", "ts,open\n".encode("utf-16")),
        ("csv", b"ts,open,high,low,close,volume\n\xff\xfe\xfd,1,1,1,1,1\n"),
        ("csv", GOOD + b"1,2\n"),
        ("csv", b"1,2,3,4,5,6\n"),
        ("csv.gz", GOOD),
        ("csv.gz", gzip.compress(GOOD)[:-9]),
        ("csv.gz", lambda: gzip.compress(bytes(80_000_000))),
        ("zip", GOOD),
        ("zip", zipped(("readme.md", b"x"))),
        ("zip", zipped(("BTCUSDT-1h.csv", GOOD))[:-30]),
        ("zip", lambda: zipped(("BTCUSDT-1h.csv", bytes(80_000_000)))),
        ("parquet", b""),
        ("parquet", GOOD),
        ("feather", GOOD),
        ("feather", b"ARROW1\0\0" + bytes(100) + b"ARROW1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # packed bytes hold the time
)
def test_a_damaged_file_is_refused_in_words(name, data, tmp_path):
    path = write(tmp_path, f"BTCUSDT_1h.{name}", data() if callable(data) else data)
    error = refusal(lambda: single(path))
    assert error.code == "data-unreadable"
    assert str(path) in error.wrong


def test_a_header_without_rows_is_no_data(tmp_path):
    path = write(tmp_path, "BTCUSDT_1h.csv", "ts,open,high,low,close,volume\n")
    assert refusal(lambda: single(path)).code == "data-defects"


@pytest.mark.parametrize("suffix", ["parquet", "feather"])
def test_a_table_with_a_name_twice_is_refused_and_nested_columns_are_not_read(suffix, tmp_path):
    table = pa.Table.from_pylist([{**bar, "levels": [1.0, 2.0]} for bar in rows()])
    path = tmp_path / f"BTC_USDT-1h.{suffix}"

    def put(content: pa.Table) -> None:
        if suffix == "parquet":
            pq.write_table(content, path)
        else:  # Feather itself refuses to write a name twice; Arrow does not
            with pa.ipc.new_file(path, content.schema) as writer:
                writer.write_table(content)

    put(table)
    assert same(single(path), rows())
    put(table.append_column("low", table["low"]))
    assert refusal(lambda: single(path)).code in {"data-column", "data-unreadable"}


def test_names_inside_an_archive_lead_nowhere(tmp_path):
    path = write(tmp_path, "BTCUSDT-1h.zip", zipped(("../../escape-1h.csv", GOOD)))
    assert same(single(path), rows())
    assert [item.name for item in tmp_path.parent.glob("escape*")] == []


@pytest.mark.parametrize("source", ["nothing.csv", "*.zip", "empty"])
def test_a_source_that_is_not_there_is_refused(source, tmp_path):
    (tmp_path / "empty").mkdir()
    assert refusal(lambda: import_files([tmp_path / source])).code == "data-source"
    strange = write(tmp_path, "BTCUSDT_1h.xlsx", b"PK")
    assert refusal(lambda: import_files([strange])).code == "data-source"


# times


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64(), pa.float64()])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_units_are_recognised_by_size(unit, kind):
    values = [in_unit(START + i * H, unit) for i in range(5)]
    column = pa.chunked_array([pa.array(values).cast(kind, safe=False)])
    for stated in (None, unit):
        times = to_milliseconds(column, unit=stated, place="x")
        assert times.unit == unit
        assert times.column.type == pa.int64()
        assert times.column.to_pylist() == [START + i * H for i in range(5)]


def test_a_missing_time_stays_missing_and_exact_nanoseconds_stay_exact():
    column = pa.chunked_array([pa.array([START * 1_000_000, None, (START + 1) * 1_000_000])])
    times = to_milliseconds(column, unit=None, place="x")
    assert times.column.to_pylist() == [START, None, START + 1]


def test_seconds_with_a_fraction_are_read_to_the_millisecond():
    column = pa.chunked_array([pa.array([START / 1000 + 0.5, START / 1000 + 0.123])])
    times = to_milliseconds(column, unit=None, place="x")
    assert times.column.to_pylist() == [START + 500, START + 123]


def test_a_stated_unit_is_believed_for_times_that_look_like_another():
    column = pa.chunked_array([pa.array([0, 60_000, 120_000])])
    assert to_milliseconds(column, unit="ms", place="x").column.to_pylist() == [0, 60_000, 120_000]
    assert to_milliseconds(column, unit="s", place="x").column.to_pylist() == [
        0,
        60_000_000,
        120_000_000,
    ]


@pytest.mark.parametrize(
    ("values", "unit"),
    [
        ([START * 1000 + 1], None),  # half a millisecond in between
        ([START * 1_000_000 + 999], None),
        ([START], "s"),  # the year 52971
        ([np.iinfo(np.int64).max], None),
        ([np.iinfo(np.int64).min], "s"),
        ([START, START // 1000], None),
        ([START + 0.5], None),
        ([1e300], None),
        (["2021-01-01T00:00:00Z"], "ms"),
        ([START], "iso"),
    ],
)
def test_times_that_are_not_certain_are_refused(values, unit):
    column = pa.chunked_array([pa.array(values)])
    assert refusal(lambda: to_milliseconds(column, unit=unit, place="x")).code == "data-time-unit"


@pytest.mark.parametrize("values", [["soon"], [True], ["2021-01-01T00:00Z", "2021-01-01T00:00"]])
def test_what_is_no_time_is_refused(values):
    column = pa.chunked_array([pa.array(values)])
    assert refusal(lambda: to_milliseconds(column, unit=None, place="x")).code == "data-type"


# frames


def test_frames_of_every_kind_give_the_same_bars(pd, pl):
    table = pa.Table.from_pylist(rows())
    pandas = table.to_pandas()
    indexed = pandas.assign(date=pd.to_datetime(pandas.ts, unit="ms", utc=True)).drop(columns="ts")
    polars = pl.from_arrow(table)
    dated = polars.with_columns(pl.from_epoch("ts", "ms").dt.replace_time_zone("UTC"))
    unnamed = indexed.set_index("date").rename_axis(None)
    frames = [table, pandas, indexed, indexed.set_index("date"), unnamed, polars, dated]
    bars = [from_frame(frame, symbol="BTC/USDT", interval=HOUR) for frame in frames]
    assert {frame.digest() for frame in bars} == {bars[0].digest()}
    assert same(bars[0], rows())


def test_a_frame_may_have_other_names_and_must_be_good():
    frame = pa.Table.from_pylist(rows()).to_pandas().rename(columns={"open": "first"})
    words = {"symbol": "BTC/USDT", "interval": HOUR}
    assert refusal(lambda: from_frame(frame, **words)).code == "data-column"
    assert same(from_frame(frame, **words, columns={"open": "first"}), rows())
    frame.loc[3, "first"] = np.nan
    broken = refusal(lambda: from_frame(frame, **words, columns={"open": "first"}))
    assert broken.code == "data-defects"
    assert refusal(lambda: from_frame([1, 2], **words)).code == "data-source"


def test_a_frame_with_times_without_a_zone_needs_the_users_word(pd):
    frame = pa.Table.from_pylist(rows()).to_pandas()
    frame["ts"] = pd.to_datetime(frame["ts"], unit="ms")
    words = {"symbol": "BTC/USDT", "interval": HOUR}
    assert refusal(lambda: from_frame(frame, **words)).code == "data-time-zone"
    assert same(from_frame(frame, **words, time_unit="iso"), rows())


# --- mark prices


def mark_file(folder, name="BTCUSDT_1h.parquet", rows=6):
    """Write mark prices as exchanges give them: without a volume."""
    price = 100.0 + np.arange(float(rows))
    columns = {"ts": 1_609_459_200_000 + 3_600_000 * np.arange(rows), "open": price}
    columns |= {"high": price + 2.0, "low": price - 2.0, "close": price + 1.0}
    pq.write_table(pa.table(columns), folder / name)
    return folder / name


def test_mark_prices_need_no_volume_and_belong_to_the_perpetual(tmp_path):
    (imported,) = import_files([mark_file(tmp_path)], Options(mark=True))
    mark = imported.data
    assert isinstance(mark, Mark)
    assert (mark.symbol, str(mark.interval), len(mark)) == ("BTC/USDT:USDT", "1h", 6)
    assert mark.table.column_names == ["ts", "open", "high", "low", "close"]
    assert mark.column("low").tolist() == [98.0, 99.0, 100.0, 101.0, 102.0, 103.0]


def test_a_file_named_as_mark_prices_is_read_with_the_option_only(tmp_path):
    path = mark_file(tmp_path, "BTC_USDT_USDT-1h-mark.parquet")
    with pytest.raises(DataError, match="named as something else"):
        import_files([path])
    (imported,) = import_files([path], Options(mark=True))
    assert imported.data.symbol == "BTC/USDT:USDT"


@pytest.mark.refusal
def test_mark_prices_of_spot_are_refused(tmp_path):
    with pytest.raises(DataError, match="must belong to a perpetual"):
        import_files([mark_file(tmp_path)], Options(mark=True), symbol="BTC/USDT")


def test_mark_prices_join_those_that_are_stored(tmp_path):
    (first,) = import_files([mark_file(tmp_path, rows=4)], Options(mark=True))
    (second,) = import_files([mark_file(tmp_path, rows=6)], Options(mark=True))
    both, lines = with_stored(second.data, first.data)
    assert (len(both), lines) == (6, [])
    moved = Mark(first.data.symbol, first.data.interval, first.data.table.slice(0, 1))
    changed = moved.table.set_column(1, "open", pa.array([1.0]))
    with pytest.raises(DataError, match="the mark prices of BTC/USDT:USDT 1h"):
        with_stored(Mark(moved.symbol, moved.interval, changed), first.data)
