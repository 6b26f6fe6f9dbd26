"""`stormsail live`: trade with real orders; the verb that asks before it does anything."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stormsail.cli.plugins import Plugins, load_plugins
from stormsail.cli.trading.session import (
    FOLDER,
    Account,
    Bars,
    Calibration,
    Folder,
    Limits,
    Settings,
    Symbols,
    check_capital,
    read_agent,
    read_config,
    read_shifts,
    trade,
    traded_symbols,
)
from stormsail.cli.trading.venues import Listed, connect, credentials_of
from stormsail.cli.trading.watching import AlertFile, Port, Watching

if TYPE_CHECKING:
    from stormsail.core.files.documents import JsonValue
    from stormsail.execution.venue import Venue

NOT_PROVEN = "not proven"


def live(
    agent: Annotated[Path, typer.Argument(help="Folder of a validated agent.")],
    capital: Annotated[float, typer.Option(help="Most that is traded, in quote currency.")],
    venue: Annotated[
        Listed, typer.Option(help="binance for spot, binanceusdm for perpetuals.")
    ] = "binanceusdm",
    accept: Annotated[
        str | None,
        typer.Option(help='Trade an unproven agent: "not proven: why"; kept in the journal.'),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: everything is right.")] = False,
    keys: Annotated[
        Path | None, typer.Option(help="TOML file with the keys, readable by you alone.")
    ] = None,
    folder: Folder = FOLDER / "live",
    symbols: Symbols = None,
    limits: Limits = None,
    settings: Settings = None,
    calibration: Calibration = None,
    bars: Bars = None,
    port: Port = None,
    alerts: AlertFile = None,
    plugin: Plugins = None,
) -> None:
    """Trade with real orders. Needs a promoted agent, keys that cannot withdraw, and a yes.

    Ctrl-C ends it and leaves positions with their protective stops; the same command goes on.
    """
    from stormsail.core.clock import SystemClock
    from stormsail.execution.reconcile import agreed_offset_ms
    from stormsail.execution.secrets import redacted_logs

    load_plugins(plugin)
    config = read_config(limits, settings)
    check_capital(capital)
    verdict, share = checked_verdict(agent, accept)
    read = read_agent(agent)
    chosen = traded_symbols(read, symbols)
    clock = SystemClock()
    credentials = credentials_of(venue, keys)
    with redacted_logs(credentials):
        place = connect(venue, chosen, clock, credentials)
        agreed_offset_ms(place, clock, config.feed)  # a signed request bears a time
        for words in _checked_key(place):
            typer.echo(f"warning: {words}", err=True)
        traded = capital * share
        _confirm(place.account_id(), chosen, traded, verdict, yes=yes)
        notes: dict[str, JsonValue] = {"verdict": verdict, "accepted": accept, "share": share}
        trade(
            Account(
                read,
                place,
                "live",
                folder,
                config,
                chosen,
                traded,
                clock,
                bars,
                read_shifts(read, calibration),
                notes,
                Watching(port, alerts),
            )
        )


def checked_verdict(agent: Path, accept: str | None) -> tuple[str, float]:
    """Return the verdict on an agent, and the share of the capital that it may trade.

    Raises:
        ConfigError: if it is not `promote`, and nobody accepts that in writing; or if it is, with
            none of the capital.
    """
    from stormsail.api.agent_folders import agent_folder
    from stormsail.core.errors import ConfigError
    from stormsail.core.files.artifact import read_artifact
    from stormsail.modules.agent import KIND

    artifact = read_artifact(agent_folder(agent), kind=KIND)
    validation = artifact.documents.get("validation")
    verdict = validation.get("verdict") if isinstance(validation, dict) else None
    decision = str(verdict.get("decision")) if isinstance(verdict, dict) else NOT_PROVEN
    if decision == "promote" and isinstance(verdict, dict):
        return decision, _share(verdict.get("capital_share"))
    written = (accept or "").partition(":")
    if decision != "reject" and written[0].strip() == NOT_PROVEN and written[2].strip():
        return decision, 1.0
    known = f"the verdict `{decision}`" if validation else "no validation in its file"
    raise ConfigError(
        "agent-unproven",
        wrong="an agent that trades real money must be promoted by `stormsail validate`",
        found=known if accept is None else f"{known}, and `--accept {accept!r}`",
        remedy="A rejected agent is not traded."
        if decision == "reject"
        else "Validate it, or write down why you trade it all the same: "
        '--accept "not proven: ...".',
    )


def _share(stated: object) -> float:
    """Return the share of the capital that a verdict allows.

    Raises:
        ConfigError: if it allows none, or does not say how much.
    """
    from stormsail.core.errors import ConfigError

    if isinstance(stated, float | int) and not isinstance(stated, bool) and 0.0 < stated <= 1.0:
        return float(stated)
    raise ConfigError(
        "agent-unproven",
        wrong="a verdict that promotes an agent must allow a share of the capital in (0, 1]",
        found=f"{stated!r:.40}",
        remedy="Validate the agent again.",
    )


def _checked_key(venue: "Venue") -> tuple[str, ...]:
    """Return warnings about a key; refuse one that can move money, or that does not say."""
    from stormsail.core.errors import ConfigError
    from stormsail.execution.permissions import check_permissions

    permissions = venue.permissions()
    if permissions is None:
        raise ConfigError(
            "venue-permission",
            wrong="a key for trading must say what it may do",
            found="no key",
            remedy="Give it a key with the rights of reading and trading, and no others.",
        )
    return check_permissions(permissions, venue.kind)


def _confirm(
    account: str, symbols: tuple[str, ...], capital: float, verdict: str, *, yes: bool
) -> None:
    """Show what is about to happen, and ask.

    Raises:
        ConfigError: if there is nobody to ask, or the answer is not the account's name.
    """
    from stormsail.core.errors import ConfigError

    typer.echo(f"real orders in {account}: {', '.join(symbols)}, {capital:,.2f}, {verdict}")
    if yes:
        return
    reply = "no terminal to ask at"
    if sys.stdin.isatty():
        answer = typer.prompt("Type the name of the account to go on")
        if answer.strip() == account:
            return
        reply = f"the answer {answer!r}"
    raise ConfigError(
        "not-confirmed",
        wrong="trading real money must be confirmed",
        found=reply,
        remedy="Pass `--yes` once you are sure: account, symbols and capital are shown before.",
    )
