"""Keys that would be recognised anywhere: trading with them, crashing with them, and a search."""

import io
import logging
import sys
import traceback
from decimal import Decimal
from pathlib import Path

import pytest

from loopback_lab import M1, NAMES, TAPE
from stormsail.core.errors import StormsailError
from stormsail.execution.ccxt_venue import CcxtVenue
from stormsail.execution.connection.rate_budget import RateBudget
from stormsail.execution.journal import NAME, Binding, Journal
from stormsail.execution.loopback import Exchange, VirtualClock
from stormsail.execution.loopback.faults import ORDER_FAULTS
from stormsail.execution.loopback.transport import in_process
from stormsail.execution.secrets import Credentials, Secret, encodings, redacted_logs
from stormsail.execution.venue import OrderRequest

KEY, SECRET = "canaryKEYcanaryKEY0123456789", "canarySECRETcanarySECRET9876543210"
START_MS = 1_700_000_400_000
CRASHES = 200


def found_in(data: bytes) -> list[str]:
    return [f for part in (KEY, SECRET) for f in encodings(part) if f.encode() in data]


def test_the_search_finds_what_it_looks_for():
    for form in [*encodings(KEY), *encodings(SECRET)]:
        assert form in found_in(f"x{form}y".encode())


@pytest.mark.spec("R28")
def test_no_byte_that_is_written_holds_a_key_at_debug_with_200_crashes(tmp_path, capfd):
    """Logs, tracebacks with their variables, the journal, the budget, standard output."""
    log, told = io.StringIO(), []
    handler = logging.StreamHandler(log)
    root, before = logging.getLogger(), logging.getLogger().level
    clock = VirtualClock(START_MS * 1_000_000)
    exchange = Exchange(clock=clock, api_key=KEY, api_secret=SECRET, check_limits=False)
    exchange.spot["BTCUSDT", "1m"] = TAPE
    exchange.deposit("spot", "USDT", "100000")
    credentials = Credentials(Secret(KEY), Secret(SECRET), "environment")
    journal = Journal(
        tmp_path / NAME, Binding("a", "b", "live", "1m", "USDT"), epoch="abcdef", now_ms=START_MS
    )
    faults = list(ORDER_FAULTS.values())
    with redacted_logs(credentials):
        root.addHandler(handler)
        root.setLevel(logging.DEBUG)
        try:
            venue = CcxtVenue(
                NAMES["spot"][0], credentials=credentials, clock=clock, base_url="http://127.0.0.1:1",
                budget=RateBudget(tmp_path / "budget", limit=10**9, clock=clock),
                adapter=in_process(exchange),
            )  # fmt: skip
            logging.getLogger("ccxt").setLevel(logging.DEBUG)
            for number in range(CRASHES):
                exchange.reset()
                exchange.always["order"] = faults[number % len(faults)]
                request = OrderRequest(f"c{number}", "BTC/USDT", "buy", "market", Decimal("0.01"))
                outcome = venue.submit(request)
                journal.add_intent(
                    request, bar_ms=number, leg="target", number=number, reference=Decimal(1),
                    now_ms=number,
                )  # fmt: skip
                journal.add_outcome(request.client_id, outcome, now_ms=number)
                told.append(repr(outcome))
                told.append(crash(venue, exchange, faults[number % len(faults)]))
                clock.advance(130.0)
            venue.close()
        finally:
            root.removeHandler(handler)
            root.setLevel(before)
            logging.getLogger("ccxt").setLevel(logging.WARNING)
            journal.close()
    written = {path.name: path.read_bytes() for path in Path(tmp_path).rglob("*") if path.is_file()}
    out, err = capfd.readouterr()
    written |= {"log": log.getvalue().encode(), "told": "\n".join(told).encode()}
    written |= {"out": out.encode(), "err": err.encode(), "argv": repr(sys.argv).encode()}
    assert {name: found_in(data) for name, data in written.items() if found_in(data)} == {}
    assert len(written["log"]) > 100_000  # ccxt wrote its requests and headers
    assert b"***" in written["log"]
    assert NAME in written


def crash(venue, exchange, fault) -> str:
    """Ask with a fault, fail, and return the traceback with every variable of every frame."""
    for group in ("account", "list", "query", "data"):
        exchange.always[group] = fault
    try:
        venue.balances()
        venue.open_orders("BTC/USDT")
        venue.bars("BTC/USDT", M1, since_ms=START_MS - 600_000, until_ms=START_MS)
        raise RuntimeError(vars(venue._client))  # noqa: TRY301 - a crash of ours
    except (StormsailError, RuntimeError):
        kind, error, trace = sys.exc_info()
        exception = traceback.TracebackException(kind, error, trace, capture_locals=True)
        return "".join(exception.format())
