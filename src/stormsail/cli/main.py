"""`stormsail`: the command line. A command imports torch and the like only when it runs."""

import os
import sys
from typing import Annotated

import typer

from stormsail import __version__
from stormsail.cli.bench import app as bench
from stormsail.cli.data.check import check
from stormsail.cli.data.fetch import fetch
from stormsail.cli.data.import_ import import_bars
from stormsail.cli.data.synth import synth
from stormsail.cli.endings import COMPLETION, run_command
from stormsail.cli.judging.attack import attack
from stormsail.cli.judging.backtest import backtest
from stormsail.cli.judging.compare import compare
from stormsail.cli.judging.performance import performance
from stormsail.cli.judging.report import report
from stormsail.cli.judging.validate import validate
from stormsail.cli.learning.population import population
from stormsail.cli.learning.resume import resume
from stormsail.cli.learning.train import train

app = typer.Typer(
    help="Train, judge and run trading agents that know their own tail risk.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(synth)
app.command("import")(import_bars)
app.command()(fetch)
app.command()(check)
app.command()(train)
app.command()(resume)
app.command()(population)
app.command()(backtest)
app.command()(attack)
app.command()(validate)
app.command()(performance)
app.command()(report)
app.command()(compare)
app.add_typer(bench, name="bench")


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - the shape typer calls
    if wanted:
        typer.echo(f"stormsail {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Read options that stand before the command."""


def main() -> None:
    """Run the command line and end the process; whatever stops it is said in one line."""
    if COMPLETION in os.environ:
        app()
    sys.exit(run_command(app))
