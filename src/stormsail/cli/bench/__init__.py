"""`stormsail bench`: measure on this machine; every speed is a ratio from one run."""

import typer

from stormsail.cli.bench.bets import bets
from stormsail.cli.bench.capping import capping
from stormsail.cli.bench.formulas import functional
from stormsail.cli.bench.learner import drift, learn, markets, train
from stormsail.cli.bench.limits import limits
from stormsail.cli.bench.market import features, simulator, wicks
from stormsail.cli.bench.optimizers import continual, optim, shrinkage
from stormsail.cli.bench.population import population
from stormsail.cli.bench.promotions import promotions
from stormsail.cli.bench.risk import frontier, tails
from stormsail.cli.bench.robust import robust
from stormsail.cli.bench.vgs import vgs
from stormsail.cli.output import add_command

app = typer.Typer(help="Measure speed on this machine, as ratios from one run.")


@app.callback(invoke_without_command=True)
def _help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


for _command in (
    *(functional, features, continual, shrinkage, optim, learn),
    *(simulator, markets, train, drift, tails, frontier, bets, capping, limits, vgs, robust),
    *(population, promotions, wicks),
):
    add_command(app, _command, group="bench")
