"""What `paper` and `live` share: one trader on one account, from the lock to the last line."""

import contextlib
import gc
import getpass
import hashlib
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stormsail.cli.output import is_quiet, publish
from stormsail.cli.trading.watching import Watching

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stormsail.core.clock import Clock
    from stormsail.core.files.documents import JsonValue
    from stormsail.execution.config import TradingConfig
    from stormsail.execution.journal import Journal
    from stormsail.execution.journal.files import NoRoomError
    from stormsail.execution.kill_switch import KillSwitch
    from stormsail.execution.loop import Ending, TradingLoop
    from stormsail.execution.operator.status import Notice, Observer, Snapshot
    from stormsail.execution.venue import Venue
    from stormsail.modules.agent import Agent

FOLDER = Path("trading")
KILLED = 1
"""Exit status of a trader that the kill switch ended."""

_LOOK_S, _FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 5.0, 60.0
"""Until the journal is tried again, where the disk takes nothing: each wait is twice the last."""

Folder = Annotated[Path, typer.Option(help="Folder of the account: journal, kill switch, pulse.")]
Symbols = Annotated[
    list[str] | None, typer.Option(help="Symbols to trade; default: those of the training.")
]
Limits = Annotated[
    Path | None, typer.Option(help="TOML file with limits, tail, protection and feed.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="path=value, such as limits.max_drawdown=0.1.")
]
Bars = Annotated[int | None, typer.Option(min=1, help="End after so many bars.")]
Calibration = Annotated[
    Path | None,
    typer.Option(help="Backtest with `--conformal`, whose correction bounds the realised tail."),
]


@dataclass(frozen=True, eq=False)
class Account:
    """Everything a trader is started with."""

    agent: "Agent"
    venue: "Venue"
    mode: str
    folder: Path
    config: "TradingConfig"
    symbols: tuple[str, ...]
    capital: float
    clock: "Clock"
    bars: int | None = None
    shifts: "Sequence[float]" = ()
    notes: Mapping[str, "JsonValue"] = field(default_factory=dict)
    watching: Watching = field(default_factory=Watching)


def read_agent(run: Path) -> "Agent":
    """Return the agent of a folder; it decides on one thread, as in a backtest."""
    import torch

    from stormsail.api.agent_folders import agent_folder
    from stormsail.modules.agent import Agent

    torch.set_num_threads(1)
    return Agent.load(agent_folder(run))


def read_config(limits: Path | None, settings: list[str] | None) -> "TradingConfig":
    """Return the operator's settings."""
    from stormsail.core.config.overrides import apply_overrides
    from stormsail.execution.config import TradingConfig

    if limits is not None:
        return TradingConfig.load(limits, settings or [])
    return TradingConfig.from_mapping(apply_overrides({}, settings or []))


def check_capital(capital: float) -> None:
    """Refuse a capital that is none.

    Raises:
        ConfigError: if it is not finite and greater than 0.
    """
    from stormsail.core.errors import ConfigError

    if not 0.0 < capital < float("inf"):
        raise ConfigError(
            "config-value",
            wrong="`--capital` must be a finite number greater than 0",
            found=repr(capital),
            remedy="Pass how much of the quote currency is traded.",
        )


def traded_symbols(agent: "Agent", given: list[str] | None) -> tuple[str, ...]:
    """Return the symbols to trade, all of one quote currency and kind.

    Raises:
        ConfigError: if they differ, or the agent is none of a market.
    """
    from stormsail.core.errors import ConfigError
    from stormsail.market.bars import check_symbol

    if "interval" not in agent.binding.values:
        raise ConfigError(
            "config-inconsistent",
            wrong="an agent that trades must have been trained on a market",
            found=f"one of the task `{agent.binding.values.get('task', 'unknown')}`",
            remedy="Train one on bars: `stormsail init bars` writes a configuration.",
        )
    trained = agent.binding.values.get("symbols")
    named = given or (trained if isinstance(trained, list) else [])
    symbols = tuple(check_symbol(str(symbol)) for symbol in named)
    kinds = {symbol.partition("/")[2] for symbol in symbols}
    if len(kinds) != 1 or len(set(symbols)) != len(symbols):
        raise ConfigError(
            "config-inconsistent",
            wrong="the symbols of an account must be different, and of one quote currency and kind",
            found=", ".join(symbols) or "none",
            remedy="Give each kind a folder of its own: `--symbols`, `--folder`.",
        )
    return symbols


def read_shifts(agent: "Agent", calibration: Path | None) -> list[float]:
    """Return the conformal correction that a backtest saved; none without one.

    Raises:
        ArtifactError: if the calibration cannot be read.
        ConfigError: if it holds no correction of this agent.
    """
    if calibration is None:
        return []
    from stormsail.core.errors import ArtifactError
    from stormsail.core.files.documents import DocumentError, decode, mapping
    from stormsail.execution.decisions.tail_limits import conformal_shift_of

    file = calibration / "calibration.json"
    try:
        document = mapping(decode(file.read_bytes()))
    except DocumentError as error:
        raise ArtifactError(
            "artifact-document",
            wrong=f"{file} must be a calibration as a backtest writes it",
            found=str(error),
            remedy="Write it with `stormsail backtest ... --conformal`, of the same agent.",
        ) from error
    return conformal_shift_of(document, agent.levels.tolist())


@contextlib.contextmanager
def alone(folder: Path, account: str, verb: str, clock: "Clock") -> Iterator[None]:
    """Hold the locks of a folder and of an account; refuse where another trader holds one.

    Raises:
        ConfigError: if another process trades the account, or in the folder.
    """
    from stormsail.core.errors import ConfigError
    from stormsail.core.files.lock import BusyError, held

    paths = [folder / "trader.lock"]
    if verb == "live":  # paper accounts share nothing but their exchange's prices
        paths.append(_lock_of(account))
    with contextlib.ExitStack() as stack:
        for path in paths:
            try:
                stack.enter_context(held(path, verb=verb, wait_s=0.0, clock=clock))
            except BusyError as error:
                raise ConfigError(
                    "account-busy",
                    wrong=f"one trader alone must trade the account {account}",
                    found=error.holder,
                    remedy="Stop the other trader first.",
                ) from None
        yield


def _lock_of(account: str) -> Path:
    """Return the lock of an account, in a folder that all traders of this user share.

    Raises:
        ConfigError: if the user has no such folder.
    """
    from stormsail.core.errors import ConfigError

    try:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    except RuntimeError as error:
        raise ConfigError(
            "config-value",
            wrong=f"the lock of the account {account} must have a folder",
            found="a user without a home",
            remedy="Set XDG_STATE_HOME to a folder that all traders of the account share.",
        ) from error
    locks = state / "stormsail"
    locks.mkdir(parents=True, exist_ok=True, mode=0o700)
    name = hashlib.sha256(account.encode()).hexdigest()[:16]
    return locks / f"account-{name}.lock"


def operator_name() -> str:
    """Return who gives a command, for the record: the name of the user, or the number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user that the system has no name for, as in a container
        return f"user {os.getuid()}"


def trade(account: Account) -> None:
    """Trade until a bar count, the kill switch or a signal ends it; then say how it went."""
    from stormsail.core.clock import SystemClock
    from stormsail.execution.kill_switch import KillSwitch

    account.folder.mkdir(parents=True, exist_ok=True)
    switch = KillSwitch(account.folder, account.clock)
    trip = switch.read()
    if trip is None or trip.way == "stop":
        switch.check()
    else:
        typer.echo(f"the kill switch asks for `{trip.way}`: this is carried out, then it ends")
    paper = account.mode == "paper"
    name = f"paper:{account.venue.name}" if paper else account.venue.account_id()
    with (
        alone(account.folder, name, account.mode, SystemClock()),
        account.watching.around(account.folder, account.clock) as observers,
    ):
        ending, loop, caught = _traded(account, name, switch, observers)
    standing = None if loop is None else loop.standing
    publish(
        folder=account.folder,
        account=name,
        mode=account.mode,
        ending=ending,
        bars=0 if standing is None else standing.step + 1,
        equity=None if standing is None else standing.equity,
    )
    if standing is not None:
        typer.echo(f"{ending}: {standing.step + 1} bars, equity {standing.equity:,.2f}")
    if ending == "killed":
        raise typer.Exit(KILLED)
    if caught:
        raise typer.Exit(128 + caught[0])


def _traded(
    account: Account, name: str, switch: "KillSwitch", observers: "tuple[Observer, ...]"
) -> "tuple[Ending, TradingLoop | None, list[int]]":
    """Trade to an end; where the disk takes nothing, wait for room and recover, as after a kill."""
    from stormsail.core.signals import handled_signals
    from stormsail.execution.journal.files import NoRoomError

    session, caught = Session(account, name, (_show, *observers)), list[int]()

    def leave(number: int) -> None:
        caught.append(number)
        session.leave()

    def kill(_number: int, _frame: object) -> None:
        switch.trip(source="signal", words="SIGUSR1")

    before = signal.signal(signal.SIGUSR1, kill)
    try:
        with handled_signals(leave):
            while True:
                try:
                    return session.run(), session.loop, caught
                except NoRoomError as error:
                    if not session.room_again(error):
                        return "left", session.loop, caught
    finally:
        signal.signal(signal.SIGUSR1, before)
        account.venue.close()


class Session:
    """Traders of one account, one after the other: each begins as after a kill.

    Args:
        account: to trade.
        name: of the account.
        observers: told what happens.
    """

    def __init__(self, account: Account, name: str, observers: "Sequence[Observer]") -> None:
        self._account, self._name, self._observers = account, name, tuple(observers)
        self._leaving, self._failed, self._waits_s = False, "", _FIRST_WAIT_S
        self._last: int | None = None
        self.loop: TradingLoop | None = None
        """The last trader that had recovered."""

    def leave(self) -> None:
        """End after what is being done now."""
        self._leaving = True
        if self.loop is not None:
            self.loop.leave()

    def run(self) -> "Ending":
        """Recover, and trade until it ends.

        Raises:
            NoRoomError: if the disk takes nothing; `room_again` waits for it.
        """
        from stormsail.execution.journal.files import NoRoomError

        with contextlib.closing(self._journal()) as journal:
            loop = self._made(journal)
            try:
                loop.start()
                self.loop, self._waits_s = loop, _FIRST_WAIT_S
                if self._failed:
                    loop.teller.tell("disk-room", f"goes on after: {self._failed}", "info")
                if self._leaving:
                    loop.leave()
                gc.collect()
                gc.freeze()  # what is there now stays: a bar need not wait for a look at all of it
                return loop.run(bars=self._bars_left(loop))
            except NoRoomError:
                raise
            except Exception as error:
                loop.teller.tell_end(error)  # nobody may be awake to see why a command has ended
                raise

    def _bars_left(self, loop: "TradingLoop") -> int | None:
        """Return how many of the bars that were asked for are left."""
        if self._account.bars is None:
            return None
        done = 0 if loop.standing is None else loop.standing.step + 1
        if self._last is None:
            self._last = done + self._account.bars
        return max(0, self._last - done)

    def room_again(self, error: "NoRoomError") -> bool:
        """Tell that the disk takes nothing, and wait; return whether to try again.

        Nothing is ordered meanwhile, since no intent could be written before it. Stops stay at the
        exchange, and a countdown there is renewed, so that it does not take them away.
        """
        from stormsail.core.clock import NANOSECONDS
        from stormsail.core.errors import VenueError
        from stormsail.execution.operator.status import Notice

        clock = self._account.clock
        at_ms = clock.now_ns() // 1_000_000
        self._failed = str(error)
        for observer in self._observers:
            with contextlib.suppress(Exception):  # whoever watches must not end the waiting
                observer(Notice(at_ms, "alarm", "disk-full", self._failed))
        end_ns = clock.monotonic_ns() + round(self._waits_s * NANOSECONDS)
        self._waits_s = min(2.0 * self._waits_s, _LONGEST_WAIT_S)
        while clock.monotonic_ns() < end_ns and not self._leaving:
            with contextlib.suppress(VenueError):
                if self.loop is not None:
                    self.loop.placing.protector.renew(self._account.symbols)
                if self._account.venue.capabilities.streams:
                    self._account.venue.events(_LOOK_S)  # recovery asks for all that they say
                    continue
            clock.sleep(_LOOK_S)
        return not self._leaving

    def _journal(self) -> "Journal":
        import socket

        from stormsail.execution.journal import NAME, Binding, Journal
        from stormsail.execution.order_ids import epoch_of

        account, now = self._account, self._account.clock.now_ns()
        quote = account.symbols[0].partition("/")[2].partition(":")[0]
        interval = str(account.agent.binding.values.get("interval", ""))
        return Journal(
            account.folder / NAME,
            Binding(self._name, account.venue.name, account.mode, interval, quote),
            epoch=epoch_of(created_ns=now, host=socket.gethostname(), pid=os.getpid()),
            now_ms=now // 1_000_000,
        )

    def _made(self, journal: "Journal") -> "TradingLoop":
        from decimal import Decimal

        from stormsail.execution.kill_switch import KillSwitch
        from stormsail.execution.loop import TradingLoop
        from stormsail.execution.paper_venue import PaperVenue

        account, clock = self._account, self._account.clock
        venue: Venue = account.venue
        if account.mode == "paper":
            capital, quote = Decimal(repr(account.capital)), journal.binding.quote
            venue = PaperVenue(account.venue, journal, clock, quote=quote, capital=capital)
        return TradingLoop(
            account.agent,
            venue,
            journal,
            KillSwitch(account.folder, clock),
            account.config,
            symbols=account.symbols,
            capital=account.capital,
            clock=clock,
            observers=self._observers,
            shifts=account.shifts,
            notes=account.notes,
        )


def _show(message: "Snapshot | Notice") -> None:
    """Print one line for a bar or a notice."""
    from stormsail.core.clock import iso
    from stormsail.execution.operator.status import Notice

    if isinstance(message, Notice):
        place = f" {message.symbol}" if message.symbol else ""
        line = f"{iso(message.at_ms, timespec='seconds')} {message.name}{place}: {message.words}"
        if message.severity != "info" or not is_quiet():
            typer.echo(line, err=message.severity != "info")
        return
    held = " ".join(f"{sleeve.symbol} {sleeve.weight:+.2f}" for sleeve in message.sleeves)
    tail = "" if message.cvar is None else f", predicted tail {message.cvar:.2%}"
    typer.echo(
        f"{iso(message.bar_ms, timespec='seconds')} {message.state} equity "
        f"{message.equity:,.2f}, drawdown {message.drawdown:.2%}{tail}; {held}"
    )
