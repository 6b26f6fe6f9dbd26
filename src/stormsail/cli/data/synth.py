"""`stormsail synth`: draw a synthetic market whose process and best strategy are known."""

import math
from pathlib import Path
from typing import Annotated

import typer

from stormsail.cli.output import publish
from stormsail.cli.plugins import Plugins, load_plugins


def synth(
    world: Annotated[str | None, typer.Argument(help="Name of the world.")] = None,
    store: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("data"),
    symbols: Annotated[int, typer.Option(min=1, help="How many symbols.")] = 3,
    bars: Annotated[int, typer.Option(min=1, help="Bars per symbol.")] = 20_000,
    interval: Annotated[str, typer.Option(help="Length of a bar: 1m, 1h, 1d.")] = "1h",
    seed: Annotated[int, typer.Option(min=0, help="Seed of every draw.")] = 0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, a setting of the world.")
    ] = None,
    list_worlds: Annotated[bool, typer.Option("--list", help="List worlds and settings.")] = False,
    plugin: Plugins = None,
) -> None:
    """Draw a synthetic world into a store; print its process and the known answer."""
    from stormsail.core.errors import ArgumentError

    load_plugins(plugin)
    if list_worlds:
        _print_worlds()
        return
    if world is None:
        raise ArgumentError(
            "missing-argument",
            wrong="the name of a world must be given",
            found="none",
            remedy="Run `stormsail synth --list` to see them.",
        )
    from stormsail.core.config.overrides import apply_overrides
    from stormsail.market.interval import Interval
    from stormsail.market.store import Store
    from stormsail.market.synthetic import config_of, generate, write_world

    length = Interval.parse(interval)
    config = config_of(world, apply_overrides({}, settings or []))
    drawn = generate(
        world, symbols=symbols, bars=bars, interval=length, seed=seed, **config.model_dump()
    )
    process = drawn.process
    known = [  # worked out before anything is written: a process that fails must leave no files
        f"process: {process.statement}",
        f"known answer: {process.answer}",
    ]
    if math.isfinite(process.mean):  # nobody has worked it out for the world of a plug-in
        known.insert(
            1,
            f"{process.measured} return a bar: mean {process.mean:.4g},"
            f" deviation {process.variance**0.5:.4g},"
            f" kurtosis {process.kurtosis:.4g}",
        )
    files = write_world(Store(store), drawn)
    names = ", ".join(part.symbol for part in drawn.bars)
    typer.echo(f"{world}, seed {seed}: {bars} bars of {length} for {names}")
    typer.echo(f"wrote {len(files)} files under {store}")
    typer.echo("\n".join(known))
    publish(
        world=world,
        seed=seed,
        bars=bars,
        interval=str(length),
        symbols=[part.symbol for part in drawn.bars],
        files=files,
        settings=config.model_dump(mode="json"),
        process=process.statement,
        returns={
            "measured": process.measured,
            "mean": process.mean,
            "deviation": process.variance**0.5,
            "kurtosis": process.kurtosis,
        },
        answer=process.answer,
    )


def _print_worlds() -> None:
    from stormsail.market.synthetic import WorldConfig, all_worlds

    shared = WorldConfig.model_fields
    worlds = all_worlds()
    publish(
        worlds=[
            {
                "world": name,
                "summary": kind.summary,
                "settings": {
                    setting: {"default": field.default, "help": _one_line(field.description)}
                    for setting, field in kind.config.model_fields.items()
                },
            }
            for name, kind in worlds.items()
        ]
    )
    for name, kind in worlds.items():
        typer.echo(f"{name}: {kind.summary}")
        for setting, field in kind.config.model_fields.items():
            if setting not in shared:
                typer.echo(f"  {setting} = {field.default}  {_one_line(field.description)}")
    typer.echo("every world")
    for setting, field in shared.items():
        typer.echo(f"  {setting} = {field.default}  {_one_line(field.description)}")


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())
