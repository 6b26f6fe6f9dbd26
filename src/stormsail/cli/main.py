"""`stormsail`: the verbs. Nothing here imports torch before a verb needs it."""

import sys
from typing import Annotated

import typer

from stormsail import __version__
from stormsail.cli.bench.continual import continual, shrinkage
from stormsail.cli.bench.drift import drift
from stormsail.cli.bench.features import features
from stormsail.cli.bench.formulas import app as bench
from stormsail.cli.bench.frontier import frontier
from stormsail.cli.bench.learn import learn
from stormsail.cli.bench.markets import markets
from stormsail.cli.bench.optim import optim
from stormsail.cli.bench.simulator import simulator
from stormsail.cli.bench.tails import tails
from stormsail.cli.bench.train import train as bench_train
from stormsail.cli.data.check import check
from stormsail.cli.data.fetch import fetch
from stormsail.cli.data.import_ import import_bars
from stormsail.cli.data.synth import synth
from stormsail.cli.judging.backtest import backtest
from stormsail.cli.judging.compare import compare
from stormsail.cli.judging.report import report
from stormsail.cli.judging.validate import validate
from stormsail.cli.learning.resume import resume
from stormsail.cli.learning.train import train
from stormsail.core.errors import StormsailError

USAGE_ERROR = 2
"""Exit status of a refusal; 1 is a verb's own "no", 0 its "yes"."""

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
app.command()(backtest)
app.command()(validate)
app.command()(report)
app.command()(compare)
bench.command()(features)
bench.command()(continual)
bench.command()(shrinkage)
bench.command()(optim)
bench.command()(learn)
bench.command()(simulator)
bench.command()(markets)
bench.command("train")(bench_train)
bench.command()(drift)
bench.command()(tails)
bench.command()(frontier)
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
    """Read options that stand before the verb."""


def main() -> None:
    """Run the command line; a refusal is printed in words, without a traceback."""
    try:
        app()
    except StormsailError as error:
        typer.echo(f"stormsail: {error}", err=True)
        sys.exit(USAGE_ERROR)
