"""`stormsail status`: what an account does, from its journal."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stormsail.cli.output import publish
from stormsail.cli.trading.session import FOLDER

if TYPE_CHECKING:
    from stormsail.execution.operator.status import Status

NOT_TRADING = 1
"""Exit status of an account that is stopped, hung or killed."""

ROWS = 100_000
"""Most rows of a table that are shown."""


def status(
    folder: Annotated[Path, typer.Argument(help="Folder of the account.")] = FOLDER / "paper",
    rows: Annotated[
        int, typer.Option(min=1, max=ROWS, help="Orders, decisions and events shown.")
    ] = 10,
) -> None:
    """Show positions, orders, decisions, events and health; exit 1 unless it is trading."""
    from stormsail.core.clock import SystemClock
    from stormsail.execution.operator.status import read_status

    account = read_status(folder, SystemClock(), rows=rows)
    publish(**account.document())
    _show(account)
    if account.life != "trading" or account.kill_switch is not None:
        raise typer.Exit(NOT_TRADING)


def _show(account: "Status") -> None:
    from rich.console import Console

    from stormsail.cli.tables import Table
    from stormsail.core.clock import iso

    console = Console()
    beat = (
        ""
        if account.pulse_age_s is None
        else f", last sign of life {account.pulse_age_s:.0f} s ago"
    )
    typer.echo(f"{account.meta['account']} ({account.meta['mode']}): {account.life}{beat}")
    if account.kill_switch is not None:
        typer.echo(f"kill switch: tripped by {account.kill_switch}")
    snapshot = account.snapshot
    if snapshot is not None:
        typer.echo(
            f"{snapshot['state']}: equity {snapshot['equity']:,.2f}, "
            f"drawdown {snapshot['drawdown']:.2%}, {snapshot['bars']} bars"
        )
        table = Table("symbol", "held", "price", "weight", "target", "reason", "equity")
        for sleeve in snapshot["sleeves"]:  # type: ignore[union-attr]
            assert isinstance(sleeve, dict)  # noqa: S101 - our own document
            target = sleeve["target"]
            table.add_row(
                str(sleeve["symbol"]),
                f"{sleeve['quantity']:g}",
                f"{sleeve['price']:g}",
                f"{sleeve['weight']:+.3f}",
                "hold" if target is None else f"{target:+.3f}",
                str(sleeve["reason"]),
                f"{sleeve['equity']:,.2f}",
            )
        console.print(table)
    orders = Table("order", "symbol", "for", "side", "quantity", "state", "filled")
    for order in account.orders:
        state = order["status"] or order["kind"] or "no answer"
        cells = ("client_id", "symbol", "leg", "side", "quantity")
        filled = str(order["filled"] or 0)
        orders.add_row(*(str(order[name]) for name in cells), str(state), filled)
    if account.orders:
        console.print(orders)
    for notice in account.notices:
        place = f" {notice.symbol}" if notice.symbol else ""
        when = iso(notice.at_ms, timespec="seconds")
        typer.echo(f"{when} {notice.severity} {notice.name}{place}: {notice.words}")
