"""`stormsail stop` and `stormsail rearm`: the kill switch of an account, by a person's hand."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stormsail.cli.output import publish
from stormsail.cli.trading.session import FOLDER, operator_name

if TYPE_CHECKING:
    from stormsail.execution.kill_switch import Way

UNCONFIRMED = 1
"""Exit status where the trader did not confirm in time."""

Place = Annotated[
    Path | None,
    typer.Argument(help="Folder of the account; default: the only one in `trading`."),
]


def only_account(folder: Path | None) -> Path:
    """Return the folder that was named, or that of the only account there is.

    Raises:
        ConfigError: if there are several: to stop the wrong one leaves the right one trading.
    """
    from stormsail.core.errors import ConfigError
    from stormsail.execution.journal import NAME

    there = [] if folder is not None else sorted(path.parent for path in FOLDER.glob(f"*/{NAME}"))
    if len(there) > 1:
        raise ConfigError(
            "usage",
            wrong="the folder must be named where there are several accounts",
            found=", ".join(map(str, there)),
            remedy="Write it after the verb, as in `stormsail stop trading/live`.",
        )
    return folder or (there[0] if there else FOLDER / "paper")


def stop(
    folder: Place = None,
    flatten: Annotated[
        bool, typer.Option("--flatten", help="Close every position as well.")
    ] = False,
    cancel_only: Annotated[
        bool,
        typer.Option("--cancel-only", help="Cancel every order, the protective stops included."),
    ] = False,
    wait: Annotated[float, typer.Option(min=0.0, help="Seconds to wait for the trader.")] = 30.0,
    words: Annotated[str, typer.Option(help="Why; kept in the journal.")] = "a person",
) -> None:
    """Trip the kill switch: no more orders, until somebody re-arms it.

    The trader cancels its orders and leaves positions with their protective stops, then ends.
    """
    from stormsail.core.clock import NANOSECONDS, SystemClock
    from stormsail.core.errors import ConfigError, DataError
    from stormsail.execution.journal import NAME, Journal
    from stormsail.execution.kill_switch import KillSwitch
    from stormsail.execution.operator.status import read_status

    if flatten and cancel_only:
        raise ConfigError(
            "usage",
            wrong="`--flatten` and `--cancel-only` must not be given together",
            found="both",
            remedy="`--flatten` cancels every order before it closes positions.",
        )
    folder = only_account(folder)
    try:
        Journal.reading(folder / NAME).close()
    except DataError as error:  # a damaged journal is no reason to go on trading
        if error.code == "journal-missing":
            raise
    clock = SystemClock()
    way: Way = "flatten" if flatten else "cancel" if cancel_only else "stop"
    trip = KillSwitch(folder, clock).trip(source="stop", words=words, way=way)
    typer.echo(f"kill switch tripped: {trip.way}")
    deadline = clock.monotonic_ns() + wait * NANOSECONDS
    life = read_status(folder, clock).life
    while life != "stopped" and clock.monotonic_ns() < deadline:
        clock.sleep(0.1)
        life = read_status(folder, clock).life
    publish(folder=folder, way=trip.way, life=life)
    if life != "stopped":
        typer.echo(f"the trader of {folder} has not confirmed yet; `stormsail status` shows it")
        raise typer.Exit(UNCONFIRMED)
    typer.echo(f"no trader of {folder} is running; nothing is sent until `stormsail rearm`")


def rearm(
    folder: Place = None,
    words: Annotated[str, typer.Option(help="Why it is safe to go on; kept in the journal.")] = "",
) -> None:
    """Arm the kill switch again. Nothing but this command does."""
    from stormsail.core.clock import SystemClock
    from stormsail.core.errors import ConfigError
    from stormsail.execution.journal import NAME, Journal
    from stormsail.execution.kill_switch import KillSwitch

    if not words.strip():
        raise ConfigError(
            "not-confirmed",
            wrong="re-arming must be answered for in words",
            found="none",
            remedy="Look at the account first, then: "
            'stormsail rearm FOLDER --words "why it is safe".',
        )
    folder = only_account(folder)
    clock = SystemClock()
    reading = Journal.reading(folder / NAME)
    binding, epoch = reading.binding, reading.epoch
    reading.close()
    switch = KillSwitch(folder, clock)
    trip = switch.read()
    cause = "it was not tripped" if trip is None else f"{trip.source}: {trip.words}"
    journal = Journal(folder / NAME, binding, epoch=epoch, now_ms=0)
    try:
        now = clock.now_ns() // 1_000_000
        journal.add_action(operator_name(), "rearm", f"{words} ({cause})", now_ms=now)
    finally:
        journal.close()
    switch.rearm()  # once it is on disk who answers for it
    publish(folder=folder, tripped=None if trip is None else cause)
    typer.echo(f"{folder} is armed again; {cause}")
