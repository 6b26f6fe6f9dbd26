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
from stormsail.cli.learning.search import search
from stormsail.cli.learning.train import train
from stormsail.cli.output import add_command
from stormsail.cli.start.configs import configs
from stormsail.cli.start.init import init
from stormsail.cli.start.show import show
from stormsail.cli.trading.live import live
from stormsail.cli.trading.paper import paper
from stormsail.cli.trading.replay import replay
from stormsail.cli.trading.status import status
from stormsail.cli.trading.stop import rearm, stop
from stormsail.cli.trading.trim import trim
from stormsail.cli.trading.watching import alerts, dashboard

app = typer.Typer(
    help="Train, judge and run trading agents that know their own tail risk.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
add_command(app, init)
add_command(app, configs)
add_command(app, show)
add_command(app, synth)
add_command(app, import_bars, "import")
add_command(app, fetch)
add_command(app, check)
add_command(app, train)
add_command(app, resume)
add_command(app, population)
add_command(app, search)
add_command(app, backtest)
add_command(app, attack)
add_command(app, validate)
add_command(app, performance)
add_command(app, report)
add_command(app, compare)
add_command(app, paper)
add_command(app, live)
add_command(app, status)
add_command(app, stop)
add_command(app, rearm)
add_command(app, dashboard)
add_command(app, alerts)
add_command(app, replay)
add_command(app, trim)
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
