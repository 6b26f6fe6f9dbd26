"""`stormsail`: the verbs. Nothing here imports torch before a verb needs it."""

import sys
from typing import Annotated

import typer

from stormsail import __version__
from stormsail.cli.backtest import backtest
from stormsail.cli.bench import app as bench
from stormsail.cli.bench_continual import continual, shrinkage
from stormsail.cli.bench_drift import drift
from stormsail.cli.bench_features import features
from stormsail.cli.bench_frontier import frontier
from stormsail.cli.bench_learn import learn
from stormsail.cli.bench_markets import markets
from stormsail.cli.bench_optim import optim
from stormsail.cli.bench_simulator import simulator
from stormsail.cli.bench_tails import tails
from stormsail.cli.bench_train import train as bench_train
from stormsail.cli.check import check
from stormsail.cli.compare import compare
from stormsail.cli.fetch import fetch
from stormsail.cli.import_ import import_bars
from stormsail.cli.report import report
from stormsail.cli.resume import resume
from stormsail.cli.synth import synth
from stormsail.cli.train import train
from stormsail.cli.validate import validate
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
