"""`stormsail trim`: shorten the journal of an account, on a person's word."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from stormsail.cli.output import publish
from stormsail.cli.trading.session import FOLDER, alone, operator_name

KEPT_DAYS = 90


def trim(
    folder: Annotated[Path, typer.Argument(help="Folder of the account.")] = FOLDER / "paper",
    keep_days: Annotated[
        int, typer.Option(min=1, max=36_500, help="Days before the last decision that stay.")
    ] = KEPT_DAYS,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete old bars, decisions, equity and events; orders, fills and actions stay for ever.

    The trader must be stopped. It goes on as before, and `replay` covers the days that are left.
    """
    from stormsail.core.clock import SystemClock, iso
    from stormsail.execution.journal import NAME, Journal
    from stormsail.market.interval import Interval

    reading = Journal.reading(folder / NAME)
    binding, epoch = reading.binding, reading.epoch
    reading.close()
    clock = SystemClock()
    with alone(folder, binding.account, "trim", clock):
        now = clock.now_ns() // 1_000_000
        journal = Journal(folder / NAME, binding, epoch=epoch, now_ms=now)
        try:
            first = journal.first_kept(keep_days)
            if first is None:
                publish(folder=folder, deleted=0, first=None, bytes=_size(journal.path))
                typer.echo(f"nothing is older than {keep_days} days before the last decision")
                return
            _confirm(folder, iso(first), yes=yes)
            settings = journal.rows("SELECT settings FROM sessions ORDER BY id DESC LIMIT 1")
            window = json.loads(str(settings[0][0]))["window"]
            length = Interval.parse(binding.interval).milliseconds
            deleted = journal.trim(
                first, who=operator_name(), now_ms=now, window_ms=window * length
            )
            journal.compact()
        finally:
            journal.close()
    size = _size(folder / NAME)
    publish(folder=folder, deleted=deleted, first=iso(first), bytes=size)
    typer.echo(f"{deleted} rows deleted; the journal begins {iso(first)}, {size / 1e6:.1f} MB")


def _size(path: Path) -> int:
    return path.stat().st_size


def _confirm(folder: Path, first: str, *, yes: bool) -> None:
    """Ask whether rows shall be gone for good.

    Raises:
        ConfigError: if there is nobody to ask, or the answer is no.
    """
    from stormsail.core.errors import ConfigError

    if yes:
        return
    reply = "no terminal to ask at"
    if sys.stdin.isatty():
        if typer.confirm(f"Delete everything before {first} in {folder} but orders and fills?"):
            return
        reply = "no"
    raise ConfigError(
        "not-confirmed",
        wrong="a deletion must be confirmed",
        found=reply,
        remedy="Copy the journal first if you may need it, then pass `--yes`.",
    )
