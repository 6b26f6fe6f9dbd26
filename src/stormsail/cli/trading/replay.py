"""`stormsail replay`: decide everything in a journal again, and say the first difference."""

from pathlib import Path
from typing import Annotated

import typer

from stormsail.cli.output import publish
from stormsail.cli.plugins import Plugins, load_plugins

DIFFERS = 1
"""Exit status of a replay that decides otherwise."""


def replay(
    journal: Annotated[Path, typer.Argument(help="Journal, or folder of an account.")],
    agent: Annotated[Path, typer.Option(help="Folder of the agent that traded.")],
    out: Annotated[
        Path | None, typer.Option(help="New folder for the parity report, for `report`.")
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Re-run every decision of a journal; exit 1 and name the first bit that differs."""
    from stormsail.cli.trading.session import read_agent
    from stormsail.core.files.atomic import check_free
    from stormsail.execution.journal import NAME, Journal
    from stormsail.execution.replay import parity, write_parity
    from stormsail.execution.replay import replay as again

    load_plugins(plugin)
    if out is not None:
        check_free(out)
    read = read_agent(agent)
    source = Journal.reading(journal / NAME if journal.is_dir() else journal)
    try:
        result = again(source, read)
        compared = parity(source, read)
    finally:
        source.close()
    publish(
        decisions=result.decisions,
        bars=result.bars,
        difference=None if result.difference is None else result.difference.document(),
        parity=compared.document(),
    )
    typer.echo(f"{result.decisions} decisions on {result.bars} bars")
    for gap in compared.fills:
        typer.echo(
            f"{gap.symbol}: {gap.fills} fills, {gap.mean_bp:+.2f} bp against the simulator, "
            f"worst {gap.worst_bp:+.2f}"
        )
    typer.echo(
        f"{compared.words}: {compared.decision_differences} of {compared.decisions} decisions "
        "differ"
    )
    if out is not None:
        write_parity(out, compared)
        typer.echo(f"wrote {out}")
    if result.difference is not None:
        typer.echo(f"differs: {result.difference}")
        raise typer.Exit(DIFFERS)
