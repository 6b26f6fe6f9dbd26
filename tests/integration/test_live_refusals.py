"""What `stormsail live` refuses, at the loopback exchange: in words, nothing sent, nothing lost."""

import gc
import sqlite3
from contextlib import closing
from decimal import Decimal

import pytest

import stormsail.cli.trading.live as live_verb
import stormsail.core.clock
from live_lab import LiveDesk, market_id
from stormsail.cli.endings import run_command
from stormsail.cli.main import app
from stormsail.cli.trading.venues import exchange_of
from stormsail.execution.journal import NAME
from stormsail.execution.loopback.clock import SkewedClock
from stormsail.modules.agent import Binding as AgentBinding

pytest.importorskip("ccxt")

VENUES = {"perp": "binanceusdm", "spot": "binance"}


class Command:
    """The verb, an account at the exchange, and an agent that nobody has validated."""

    def __init__(self, place, dialect, patch, captured):
        patch.setenv("XDG_STATE_HOME", str(place / "state"))
        patch.setattr(gc, "freeze", lambda: None)  # this process goes on to other tests
        self.patch, self.captured = patch, captured
        (place / "desk").mkdir()
        self.desk = LiveDesk(place / "desk", dialect, symbols=1)
        self.desk.venue.close()
        self.folder, self.agent = place / "account", place / "agent"
        self.desk.agent.save(self.agent)
        self.clock = self.desk.clock

    def __call__(self, *words):
        """Run it for two bars; return its status and what it complained of."""
        name = VENUES[self.desk.dialect].upper()
        self.patch.setenv(f"STORMSAIL_{name}_KEY", "key-of-the-test")
        self.patch.setenv(f"STORMSAIL_{name}_SECRET", "secret-of-the-test")
        self.patch.setattr(stormsail.core.clock, "SystemClock", lambda: self.clock)
        self.patch.setattr(live_verb, "connect", self._connect)
        given = {
            "--venue": VENUES[self.desk.dialect],
            "--capital": "1000",
            "--accept": "not proven: a test",
            "--folder": str(self.folder),
            "--bars": "2",
            "--symbols": self.desk.symbols[0],
            **dict(zip(words[::2], words[1::2], strict=True)),
        }
        options = [word for pair in given.items() for word in pair]
        settings = ("feed.burn_in=8", "feed.poll_s=30", "limits.leverage_slack=0.2")
        settings += ("limits.max_daily_loss=1.0", "limits.max_drawdown=1.0")
        options += [word for own in settings for word in ("--set", own)]
        status = run_command(app, ["live", str(self.agent), "--yes", *options])
        return status, self.captured.readouterr().err

    def _connect(self, name, symbols, _clock, _credentials):
        exchange_of(name, symbols)
        return self.desk.open_venue(self.clock)

    def refused(self, *words):
        """Return the code of a refusal; nothing was sent, and all that was known still is."""
        before = self.journal()
        status, words = self(*words)
        assert status == 2, words
        assert self.desk.exchange.of_group("order") == []
        after = set(self.journal())
        assert [line for line in before if line not in after] == []
        line = words.rstrip().splitlines()[-1]
        assert "must" in line
        assert "; found " in line
        return line.rpartition("[")[2].rstrip("]")

    def journal(self):
        """Return what is in the journal, nothing without one."""
        if not (self.folder / NAME).is_file():
            return []
        with closing(sqlite3.connect(self.folder / NAME)) as database:
            return list(database.iterdump())

    def rebound(self, **changes):
        """Save the agent with other values of its binding."""
        agent = self.desk.agent
        agent.binding = AgentBinding(dict(agent.binding.values) | changes)
        agent.save(self.agent.with_name("other"))
        self.agent = self.agent.with_name("other")


@pytest.fixture(params=["perp", "spot"])
def command(request, tmp_path, monkeypatch, capsys):
    return Command(tmp_path, request.param, monkeypatch, capsys)


@pytest.fixture
def perp(tmp_path, monkeypatch, capsys):
    return Command(tmp_path, "perp", monkeypatch, capsys)


def test_what_fits_trades(command):
    status, words = command("--bars", "12")
    assert status == 0, words
    assert command.desk.exchange.of_group("order")


@pytest.mark.parametrize(
    "right", ["enableWithdrawals", "enableInternalTransfer", "permitsUniversalTransfer"]
)
def test_a_key_with_too_many_rights_is_refused(command, right):
    command.desk.exchange.rights[right] = True
    assert command.refused() == "venue-permission"
    assert not command.folder.exists()


def test_a_key_that_may_not_trade_is_refused(command):
    for right in ("enableFutures", "enableSpotAndMarginTrading"):
        command.desk.exchange.rights[right] = False
    assert command.refused() == "venue-permission"


def test_a_symbol_that_is_delisted_or_unknown_is_refused(command):
    known = command.desk.symbols[0]
    unknown = known.replace("BTC", "NONE")
    assert command.refused("--symbols", unknown) == "venue-symbol"
    command.desk.book.listing(market_id(known)).status = "DELISTED"
    assert command.refused() == "venue-symbol"


def test_a_symbol_that_is_delisted_while_nobody_is_here_is_refused_and_its_journal_kept(command):
    assert command("--bars", "12")[0] == 0
    sent = len(command.desk.exchange.of_group("order"))
    before = command.journal()
    command.desk.book.listing(market_id(command.desk.symbols[0])).status = "DELISTED"
    status, words = command()
    assert (status, "[venue-symbol]" in words) == (2, True)
    assert len(command.desk.exchange.of_group("order")) == sent
    after = command.journal()
    assert [line for line in before if line not in set(after)] == []


def test_a_market_whose_filters_changed_is_traded_by_the_new_ones(command):
    listing = command.desk.book.listing(market_id(command.desk.symbols[0]))
    assert command("--bars", "4")[0] == 0
    before = len(command.desk.exchange.of_group("order"))
    listing.lot = listing.min_quantity = listing.lot * 10
    listing.tick *= 10
    assert command("--bars", "30")[0] == 0
    later = command.desk.exchange.of_group("order")[before:]
    assert later
    quantities = [Decimal(own.params["quantity"]) for own in later]
    assert all(quantity % listing.lot == 0 for quantity in quantities)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"interval": "4h"}, {"data-interval", "venue-symbol", "bars-stale", "feature-schema"}),
        ({"interval": "7m"}, {"unknown-choice"}),
        ({"feature_schema": "x" * 64}, {"feature-schema", "config-inconsistent"}),
        ({"interval": None}, {"config-inconsistent", "data-interval"}),
        ({"symbols": ["BTC/EUR", "ETH/USDT"]}, set()),
    ],
)
def test_an_agent_whose_schema_interval_or_market_does_not_fit_is_refused(command, changes, code):
    command.rebound(**changes)
    if "symbols" in changes:
        command.desk.symbols = changes["symbols"]
        assert command.refused("--symbols", "BTC/EUR") in {"config-inconsistent", "venue-symbol"}
        return
    assert command.refused() in code


def test_an_agent_of_another_kind_of_market_is_refused(command):
    other = "binance" if command.desk.dialect == "perp" else "binanceusdm"
    name = other.upper()
    command.patch.setenv(f"STORMSAIL_{name}_KEY", "key-of-the-test")
    command.patch.setenv(f"STORMSAIL_{name}_SECRET", "secret-of-the-test")
    assert command.refused("--venue", other) == "config-inconsistent"


@pytest.mark.parametrize(
    "name", ["account", "venue", "mode", "interval", "quote", "version", "damaged"]
)
def test_a_journal_of_another_account_or_version_is_refused_and_left_as_it_is(perp, name):
    assert perp("--bars", "1")[0] == 0
    perp.desk.exchange.requests.clear()
    path = perp.folder / NAME
    with closing(sqlite3.connect(path)) as database:
        if name == "version":
            database.execute("PRAGMA user_version = 99")
        elif name == "damaged":
            database.execute("DROP TABLE memories")
        else:
            database.execute("DROP TRIGGER meta_keep")
            database.execute("UPDATE meta SET value = 'another' WHERE key = ?", (name,))
        database.commit()
    wanted = {"version": "journal-version", "damaged": "journal-damaged"}
    assert perp.refused() == wanted.get(name, "journal-account")


@pytest.mark.parametrize("offset_ms", [-60_000, -700, 700, 60_000])
def test_a_clock_that_is_off_is_refused(command, offset_ms):
    command.clock = SkewedClock(command.desk.clock, offset_ms)
    assert command.refused() == "clock-offset"


def test_bars_that_are_stale_or_have_holes_are_refused(command):
    symbol = market_id(command.desk.symbols[0])
    tapes, now = command.desk.book.tapes, command.desk.clock.now_ms()
    whole = tapes[symbol, "15m"]
    closed = [row for row in whole if row[0] + 900_000 <= now]
    for left in (
        closed[:-3],
        [row for k, row in enumerate(whole) if k % 3 or row[0] > now - 2_000_000],
        [],
    ):
        tapes[symbol, "15m"] = left
        assert command.refused() in {"bars-stale", "data-span"}
    tapes[symbol, "15m"] = whole
    assert command()[0] == 0


def test_more_capital_than_the_account_holds_is_refused(command):
    assert command.refused("--capital", "1000000") == "config-value"
