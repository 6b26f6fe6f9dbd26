"""`stormsail fetch` as a user meets it: another process, the real ccxt client, a loopback venue."""

import os
import signal
import subprocess
import sys

import pytest

from stormsail.execution.loopback import Fault, Loopback, candles, rates
from stormsail.execution.loopback.tape import HOUR
from stormsail.market.interval import Interval
from stormsail.market.store import Store

START = 1_609_459_200_000  # 2021-01-01T00:00:00Z
H1 = Interval.parse("1h")
# The verb, also where the command line does not list it yet.
# A shell that starts a job in the background has it ignore interrupts; here they must arrive.
CODE = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "import stormsail.cli.main as m; m.main()"
)


@pytest.fixture
def venue():
    with Loopback() as server:
        server.spot["BTCUSDT", "1h"] = candles(1, 2500, start=START)
        rows = candles(2, 1200, start=START)
        server.perp["BTCUSDT", "1h"] = rows[:700] + rows[705:]
        server.perp["ETHUSDT", "1h"] = candles(3, 300, start=START)
        server.funding["BTCUSDT"] = rates(4, 150, start=START)
        server.funding["ETHUSDT"] = rates(5, 30, start=START)
        yield server


def begin(venue, tmp_path, *arguments):
    command = [sys.executable, "-c", CODE, "fetch", *arguments]
    command += ["--store", str(tmp_path / "data"), "--base-url", venue.url]
    secrets = {"BINANCE_APIKEY": "canary-key", "BINANCE_SECRET": "canary-secret"}
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | secrets | {"OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
    )


def run(venue, tmp_path, *arguments):
    process = begin(venue, tmp_path, *arguments)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def test_several_symbols_with_funding_in_one_command(venue, tmp_path):
    venue.script["data", 2] = Fault("status", status=429, headers={"Retry-After": "0"})
    code, out, err = run(
        venue, tmp_path, "BTC/USDT:USDT", "ETH/USDT:USDT", "--exchange", "binanceusdm",
        "--since", "2021-01-01", "--until", "2021-02-20", "--funding",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "BTC/USDT:USDT 1h: 1195 rows added, 1195 stored, 1 gaps (5 bars), 5 requests, 1 retries",
        "BTC/USDT:USDT terms: kind, lot, tick, min_notional, maker_fee, taker_fee, listed",
        "  not stated: max_leverage, maintenance",
        "BTC/USDT:USDT funding: 150 rows added, 150 stored, 0 gaps (0 bars), 1 requests, 0 retries",
        # after its last bar, ETH is asked twice for what the exchange does not have
        "ETH/USDT:USDT 1h: 300 rows added, 300 stored, 0 gaps (0 bars), 3 requests, 0 retries",
        "ETH/USDT:USDT terms: kind, lot, tick, min_notional, maker_fee, taker_fee, listed",
        "  not stated: max_leverage, maintenance",
        "ETH/USDT:USDT funding: 30 rows added, 30 stored, 0 gaps (0 bars), 1 requests, 0 retries",
    ]
    store = Store(tmp_path / "data")
    assert len(store.read("BTC/USDT:USDT", H1)) == 1195
    assert len(store.read_funding("ETH/USDT:USDT").ts) == 30
    assert store.read_terms("ETH/USDT:USDT").terms.min_notional == 100.0
    assert "canary" not in out + err + repr(venue.requests)


def test_an_interrupt_leaves_a_whole_store_and_the_next_run_continues(venue, tmp_path):
    venue.script["data", 3] = Fault("hang", seconds=20.0)
    process = begin(
        venue, tmp_path, "BTC/USDT", "--since", "2021-01-01", "--until", "2021-04-15T04:00Z"
    )

    def interrupt(group, number, moment):
        if (group, number, moment) == ("data", 3, "before"):
            process.send_signal(signal.SIGINT)

    venue.on_request = interrupt
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert err == "stormsail: BTC/USDT 1h: interrupted; the same command continues it.\n"
    store = Store(tmp_path / "data")
    assert store.read("BTC/USDT", H1).ts.tolist() == [START + n * HOUR for n in range(2000)]
    venue.reset()
    code, out, _ = run(venue, tmp_path, "BTC/USDT", "--until", "2021-04-15T04:00Z")
    assert (code, out) == (
        0,
        "BTC/USDT 1h: 500 rows added, 2500 stored, 0 gaps (0 bars), 2 requests, 0 retries\n"
        "BTC/USDT terms: kind, lot, tick, min_notional, maker_fee, taker_fee\n"
        "  not stated: listed\n",
    )


@pytest.mark.refusal
def test_a_ban_is_words_and_exit_code_two(venue, tmp_path):
    venue.script["data", 1] = Fault(
        "status", status=418, body='{"msg":"banned until 1893456000000."}'
    )
    code, out, err = run(venue, tmp_path, "BTC/USDT", "ETH/USDT", "--since", "2021-01-01")
    assert (code, out, venue.banned) == (2, "", 0)
    assert err == (
        "stormsail: binance must accept requests from this address to give BTC/USDT 1h; found "
        "HTTP 418, banned until 2030-01-01T00:00:00Z. No further request was sent. Wait until "
        "then, and stop other programs that use the same address: asking during a ban prolongs it. "
        "[venue-ban]\n"
    )


@pytest.mark.refusal
def test_a_time_that_cannot_be_read_is_refused_before_anything_is_requested(venue, tmp_path):
    code, _, err = run(venue, tmp_path, "BTC/USDT", "--since", "yesterday")
    assert (code, venue.requests) == (2, [])
    assert err == (
        "stormsail: `--since` must be a day or a time; found `yesterday`. Write `2020-01-31` or "
        "`2020-01-31T08:00Z`. [config-value]\n"
    )


@pytest.mark.parametrize(
    ("since", "until", "words"),
    [
        ("2021-02-01", "2021-01-01", "`--since` must be earlier than `--until` 2021-01-01T00:00"),
        ("2090-01-01", "2091-01-01", "`--since` must be earlier than the present, "),
    ],
)
def test_a_span_without_bars_is_refused(venue, tmp_path, since, until, words):
    code, out, err = run(venue, tmp_path, "BTC/USDT", "--since", since, "--until", until)
    assert (code, out, venue.requests) == (2, "", [])
    assert words in err


def test_warnings_of_the_checks_are_printed(venue, tmp_path):
    code, out, _ = run(
        venue, tmp_path, "BTC/USDT", "--since", "2021-01-01", "--until", "2021-01-01T01:00"
    )
    assert code == 0
    assert out.splitlines()[1:] == [
        "  warning: D12 one-row, 1x, first at 1 row",
        "BTC/USDT terms: kind, lot, tick, min_notional, maker_fee, taker_fee",
        "  not stated: listed",
    ]


def test_the_verb_is_listed_without_loading_what_it_needs():
    script = (
        "import sys, stormsail.cli.data.fetch; "
        "print([m for m in ('torch', 'pyarrow', 'ccxt', 'rich.progress') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert result.stdout == b"[]\n"
