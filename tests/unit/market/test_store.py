"""The store: the same bars give the same bytes, and every changed byte is seen or harmless."""

import fcntl
import json
import os
import random
import socket
import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stormsail.core.clock import ManualClock
from stormsail.core.errors import DataError
from stormsail.core.files.lock import BusyError, held
from stormsail.market.bars import Bars, Funding, from_columns
from stormsail.market.interval import Interval
from stormsail.market.store import LOCK, Store, folder_name, symbol_of

HOUR = Interval.parse("1h")
START = 1_609_459_200_000


def sample(symbol: str = "BTC/USDT", rows: int = 50, interval: Interval = HOUR, **notes) -> Bars:
    index = np.arange(rows)
    price = 100.0 + np.sin(index)
    columns = {"ts": START + index * interval.milliseconds, "open": price, "high": price + 1}
    columns |= {"low": price - 1, "close": price, "volume": index * 1.5, "trades": index}
    return Bars(symbol, interval, from_columns(symbol, interval, columns).table, notes)


def rates(symbol: str = "BTC/USDT:USDT") -> Funding:
    ts = [START + i * 28_800_000 for i in range(5)]
    return Funding(symbol, pa.table({"ts": ts, "funding_rate": [1e-4, -2e-4, 0.0, 3e-4, 1e-4]}))


def refusal(call) -> DataError:
    with pytest.raises(DataError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("symbol", ["BTC/USDT", "BTC/USDT:USDT", "1000PEPE/USDT", "BTC/USD:BTC"])
def test_a_folder_name_leads_back_to_its_symbol(symbol):
    assert symbol_of(folder_name(symbol)) == symbol
    assert "/" not in folder_name(symbol)


def test_what_is_written_is_read_with_its_notes(tmp_path):
    store, bars = Store(tmp_path / "deep" / "data"), sample(source="a.csv", remark="ü; x=1")
    path = store.write(bars)
    assert path == tmp_path / "deep" / "data" / "BTC-USDT" / "1h.parquet"
    back = store.read("BTC/USDT", HOUR)
    assert back.table.equals(bars.table)
    assert back.notes == bars.notes
    assert back.digest() == bars.digest()
    assert (back.symbol, back.interval) == ("BTC/USDT", HOUR)


def test_funding_is_kept_beside_the_bars(tmp_path):
    store = Store(tmp_path)
    assert store.read_funding("BTC/USDT:USDT") is None
    path = store.write_funding(rates())
    assert path == tmp_path / "BTC-USDT_USDT" / "funding.parquet"
    assert store.read_funding("BTC/USDT:USDT").table.equals(rates().table)
    assert store.contents() == []


def test_missing_values_and_signs_of_zero_survive(tmp_path):
    columns = {name: sample(rows=4).table[name] for name in sample().columns}
    columns["open"] = pa.array([1.0, None, float("nan"), -0.0])
    columns["trades"] = pa.array([1, None, 3, 4])
    bars = Bars("BTC/USDT", HOUR, pa.table(columns))
    Store(tmp_path).write(bars)
    back = Store(tmp_path).read("BTC/USDT", HOUR)
    assert back.digest() == bars.digest()
    assert back.table["trades"].to_pylist() == [1, None, 3, 4]
    assert back.table["open"].is_valid().to_pylist() == [True, False, True, True]


def test_no_bars_can_be_stored_too(tmp_path):
    Store(tmp_path).write(sample(rows=0))
    assert len(Store(tmp_path).read("BTC/USDT", HOUR)) == 0


def test_the_same_bars_give_the_same_bytes(tmp_path):
    bars = sample(b="2", a="1")
    chunks = pa.concat_tables([bars.table.slice(0, 7), bars.table.slice(7)])
    other = Bars(bars.symbol, bars.interval, chunks, {"a": "1", "b": "2"})
    first = Store(tmp_path / "x").write(bars).read_bytes()
    assert Store(tmp_path / "y").write(other).read_bytes() == first
    assert Store(tmp_path / "x").write(sample(a="1", b="3")).read_bytes() != first


def test_contents_are_sorted_by_symbol_and_length(tmp_path):
    store = Store(tmp_path)
    assert store.contents() == []
    for symbol in ("ETH/USDT", "BTC/USDT:USDT", "BTC/USDT"):
        for text in ("4h", "15m", "1h"):
            store.write(sample(symbol, interval=Interval.parse(text)))
    store.write_funding(rates())
    lengths = [Interval.parse(text) for text in ("15m", "1h", "4h")]
    symbols = ["BTC/USDT", "BTC/USDT:USDT", "ETH/USDT"]
    assert store.contents() == [(symbol, length) for symbol in symbols for length in lengths]


def test_notes_cannot_pose_as_the_symbol(tmp_path):
    bars = Bars("BTC/USDT", HOUR, sample().table, {"symbol": "ETH/USDT", "interval": "1d"})
    Store(tmp_path).write(bars)
    assert Store(tmp_path).read("BTC/USDT", HOUR).symbol == "BTC/USDT"


@pytest.mark.refusal
def test_absent_bars_say_how_to_get_them(tmp_path):
    assert str(refusal(lambda: Store(tmp_path).read("BTC/USDT", HOUR))) == (
        f"BTC/USDT 1h must be in the store; found no file {tmp_path}/BTC-USDT/1h.parquet. Run "
        "`stormsail import`, `stormsail fetch` or `stormsail synth` first. [data-missing]"
    )


@pytest.mark.refusal
def test_a_file_under_another_symbol_is_noticed(tmp_path):
    store = Store(tmp_path)
    wrong = store.write(sample("ETH/USDT"))
    place = store.path("BTC/USDT", HOUR)
    place.parent.mkdir()
    wrong.rename(place)
    assert str(refusal(lambda: store.read("BTC/USDT", HOUR))) == (
        f"{place} must hold BTC/USDT 1h; found ETH/USDT 1h. Somebody moved or copied the file; "
        "put it back, or import it again. [data-mismatch]"
    )


def test_a_file_under_another_interval_or_as_funding_is_noticed(tmp_path):
    store = Store(tmp_path)
    path = store.write(sample("BTC/USDT:USDT"))
    day = Interval.parse("1d")
    store.path("BTC/USDT:USDT", day).write_bytes(path.read_bytes())
    store.funding_path("BTC/USDT:USDT").write_bytes(path.read_bytes())
    assert refusal(lambda: store.read("BTC/USDT:USDT", day)).code == "data-mismatch"
    assert refusal(lambda: store.read_funding("BTC/USDT:USDT")).code == "data-column"


def test_a_foreign_parquet_file_is_refused(tmp_path):
    store = Store(tmp_path)
    path = store.write(sample())
    pq.write_table(sample().table, path)
    error = refusal(lambda: store.read("BTC/USDT", HOUR))
    assert (error.code, error.found) == (
        "data-unreadable",
        "values or notes that do not fit the hash written with them",
    )


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" * 4, b"\0" * 200, b"text\n" * 50])
def test_what_is_no_parquet_file_is_refused(content, tmp_path):
    path = Store(tmp_path).write(sample())
    path.write_bytes(content)
    assert refusal(lambda: Store(tmp_path).read("BTC/USDT", HOUR)).code == "data-unreadable"
    assert path.read_bytes() == content


def test_a_folder_or_a_dead_link_in_the_place_of_a_file_is_refused(tmp_path):
    store = Store(tmp_path)
    path = store.write(sample())
    path.unlink()
    path.mkdir()
    assert refusal(lambda: store.read("BTC/USDT", HOUR)).code == "data-unreadable"
    path.rmdir()
    path.symlink_to(tmp_path / "nowhere")
    assert refusal(lambda: store.read("BTC/USDT", HOUR)).code == "data-unreadable"


def damaged(whole: bytes, chance: random.Random) -> bytes:
    """Return the bytes with one accident: a flipped bit, a lost end, a zeroed or swapped piece."""
    data = bytearray(whole)
    at = chance.randrange(len(data))
    match chance.randrange(4):
        case 0 | 1:
            data[at] ^= 1 << chance.randrange(8)
        case 2:
            del data[at:]
        case _:
            data[at : at + 64] = bytes(min(64, len(data) - at))
    return bytes(data)


@pytest.mark.parametrize("seed", range(4))
def test_damage_is_refused_or_changes_nothing(seed, tmp_path):
    store, bars = Store(tmp_path), sample(rows=300, source="a.csv")
    path = store.write(bars)
    whole, chance = path.read_bytes(), random.Random(seed)
    codes = []
    for _ in range(250):
        path.write_bytes(damaged(whole, chance))
        try:
            back = store.read("BTC/USDT", HOUR)
        except DataError as error:
            codes.append(error.code)
        else:  # statistics, padding and the like: what is read is what was written
            assert back.digest() == bars.digest()
            assert back.notes == bars.notes
    assert set(codes) <= {"data-unreadable", "data-mismatch"}
    assert len(codes) > 200


@pytest.mark.refusal
def test_a_second_writer_is_told_who_the_first_is(tmp_path):
    store = Store(tmp_path)
    path = store.write(sample())
    before = path.read_bytes()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout.readline() == b"held\n"

        def second():
            with store.writing("stormsail import", wait_s=0.1):
                store.write(sample(rows=60))

        error = refusal(second)
        since = json.loads((tmp_path / LOCK).read_text())["since"]
        assert str(error) == (
            f"the store {tmp_path} must have one writer at a time; found process {holder.pid} on "
            f"{socket.gethostname()} (stormsail fetch), which holds it since {since}. Wait until "
            "it has ended and run the same again; nothing was written. [data-busy]"
        )
        assert path.read_bytes() == before
    finally:
        holder.kill()  # the kernel frees what a killed process held
        holder.communicate()
    second()
    assert len(store.read("BTC/USDT", HOUR)) == 60
    assert not (tmp_path / LOCK).exists()


HOLD = """
import sys
from stormsail.market.store import Store

with Store(sys.argv[1]).writing("stormsail fetch"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_writes_inside_of_a_held_store_take_part_and_other_threads_wait(tmp_path):
    store = Store(tmp_path)
    order = []

    def other():
        with store.writing("other"):
            order.append(len(store.read("BTC/USDT", HOUR)))

    with store.writing("first"):
        thread = threading.Thread(target=other)
        thread.start()
        with store.writing("again"):
            store.write(sample(rows=10))
        order.append("first")
        store.write(sample(rows=20))
    thread.join()
    assert order == ["first", 20]


def test_a_waiting_writer_counts_time_by_its_clock(tmp_path):
    """A pause is 20 ms: 0.1 s are five of them, and a holder that says nothing is named so."""
    path = tmp_path / "x.lock"
    clock = ManualClock(1_700_000_000_000_000_000)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(BusyError) as caught, held(path, verb="x", wait_s=0.1, clock=clock):
            pass
        assert caught.value.holder == "another process, which did not say who it is"
        assert clock.monotonic_ns() == 100_000_000
    with held(path, verb="x", wait_s=0.0, clock=clock):
        told = json.loads(path.read_text())
        assert (told["pid"], told["verb"]) == (os.getpid(), "x")
        assert told["since"] == "2023-11-14T22:13:20Z"  # 1.7e9 seconds, and 0.1 s of waiting
        with pytest.raises(BusyError) as caught, held(path, verb="y", wait_s=0.0, clock=clock):
            pass
        assert caught.value.holder == (
            f"process {os.getpid()} on {socket.gethostname()} (x), which holds it since "
            "2023-11-14T22:13:20Z"
        )
    assert not path.exists()


@pytest.mark.refusal
def test_a_pipe_in_the_place_of_a_store_or_its_files_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    error = refusal(lambda: Store(tmp_path / "pipe").write(sample()))
    assert (error.code, error.found) == ("data-write", "a named pipe")
    error = refusal(lambda: Store("/dev/null").write(sample()))
    assert (error.code, error.found) == ("data-write", "a device")
    store = Store(tmp_path / "data")
    path = store.write(sample())
    path.unlink()
    os.mkfifo(path)
    error = refusal(lambda: store.read("BTC/USDT", HOUR))
    assert error.code == "data-unreadable"
    assert "a named pipe instead of a file" in error.found
    os.mkfifo(store.funding_path("BTC/USDT"))
    assert refusal(lambda: store.read_funding("BTC/USDT")).code == "data-unreadable"
    os.mkfifo(tmp_path / "data" / LOCK)
    error = refusal(lambda: store.write(sample()))
    assert (error.code, "the lock is no regular file" in error.found) == ("data-write", True)


def test_a_store_behind_a_link_is_that_store(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far")
    Store(tmp_path / "near").write(sample())
    path = Store(tmp_path / "far").path("BTC/USDT", HOUR)
    assert len(Store(tmp_path / "far").read("BTC/USDT", HOUR)) == 50
    moved = path.rename(tmp_path / "elsewhere.parquet")
    path.symlink_to(moved)
    assert len(Store(tmp_path / "near").read("BTC/USDT", HOUR)) == 50


def test_a_store_that_is_a_file_cannot_be_written(tmp_path):
    (tmp_path / "data").write_text("")
    assert refusal(lambda: Store(tmp_path / "data").write(sample())).code == "data-write"


def test_what_a_dead_writer_left_is_cleared_away(tmp_path):
    store = Store(tmp_path)
    store.write(sample())
    (tmp_path / "BTC-USDT" / f".tmp-{os.getpid()}-0").write_bytes(b"half")
    (tmp_path / "BTC-USDT" / ".tmp-1-1").write_bytes(b"half")
    store.write(sample(rows=60))
    assert [path.name for path in (tmp_path / "BTC-USDT").iterdir()] == ["1h.parquet"]


def test_a_folder_that_looks_like_a_partition_adds_no_column(tmp_path):
    store = Store(tmp_path / "exchange=binance")
    store.write(sample())
    assert store.read("BTC/USDT", HOUR).columns == sample().columns
