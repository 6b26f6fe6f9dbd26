"""`stormsail paper`: trade live bars on paper, with the simulator's own fills."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

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
from stormsail.cli.trading.venues import Name, connect
from stormsail.cli.trading.watching import AlertFile, Port, Watching


def paper(
    agent: Annotated[
        Path | None, typer.Argument(help="Folder of a run, or of an agent; none for --demo.")
    ] = None,
    venue: Annotated[Name, typer.Option(help="Whose bars and prices.")] = "binanceusdm",
    demo: Annotated[
        bool, typer.Option("--demo", help="A drawn market: no network, no key, no agent needed.")
    ] = False,
    speed: Annotated[
        float, typer.Option(min=0.001, max=1e6, help="Of the demonstration's clock.")
    ] = 1000.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the drawn market and agent.")] = 0,
    folder: Folder = FOLDER / "paper",
    symbols: Symbols = None,
    capital: Annotated[float, typer.Option(help="On paper, in quote currency.")] = 10_000.0,
    limits: Limits = None,
    settings: Settings = None,
    calibration: Calibration = None,
    bars: Bars = None,
    port: Port = None,
    alerts: AlertFile = None,
    plugin: Plugins = None,
) -> None:
    """Trade live bars on paper: the agent decides, nothing is sent to anybody.

    Ctrl-C ends it, the same command goes on. `stormsail stop` trips the kill switch.
    """
    from stormsail.core.clock import SystemClock
    from stormsail.core.errors import ConfigError

    load_plugins(plugin)
    config = read_config(limits, settings)
    check_capital(capital)
    if demo != (venue == "loopback"):
        raise ConfigError(
            "config-inconsistent",
            wrong="the drawn market must be traded at the loopback exchange, and only that",
            found=f"`--venue {venue}` {'with' if demo else 'without'} `--demo`",
            remedy="Write `stormsail paper --venue loopback --demo`.",
        )
    if demo:
        watching = Watching(port, alerts)
        _demo(agent, folder, symbols, capital, config, bars, watching, speed=speed, seed=seed)
        return
    if agent is None:
        raise ConfigError(
            "usage",
            wrong="`stormsail paper` must be given the folder of an agent",
            found="none",
            remedy="Name it, or try `stormsail paper --venue loopback --demo`.",
        )
    read = read_agent(agent)
    chosen = traded_symbols(read, symbols)
    clock = SystemClock()
    account = Account(
        read,
        connect(venue, chosen, clock, None),
        "paper",
        folder,
        config,
        chosen,
        capital,
        clock,
        bars,
        read_shifts(read, calibration),
        watching=Watching(port, alerts),
    )
    trade(account)


def _demo(
    agent: Path | None,
    folder: Path,
    symbols: list[str] | None,
    capital: float,
    config: object,
    bars: int | None,
    watching: Watching,
    *,
    speed: float,
    seed: int,
) -> None:
    from stormsail.cli.trading import demo as drawn
    from stormsail.execution.config import TradingConfig

    assert isinstance(config, TradingConfig)  # noqa: S101 - of the caller
    panel = drawn.drawn_bars(seed)
    folder = folder.with_name("demo") if folder == FOLDER / "paper" else folder
    own = folder / "agent"
    if agent is None and not own.exists():
        folder.mkdir(parents=True, exist_ok=True)
        drawn.untrained_agent(panel, seed).save(own)  # for `replay`, and to go on
    made = read_agent(own if agent is None else agent)
    chosen = traded_symbols(made, symbols or list(panel.symbols))
    # a clock that runs so fast passes seconds while a request is answered
    eager = config.replace(
        feed={
            **config.feed.model_dump(),
            "burn_in": drawn.BURN_IN,
            "max_clock_offset_ms": max(500.0, 1000.0 * speed),
            "poll_s": max(1.0, speed / 20.0),
        },
        limits={**config.limits.model_dump(), "max_quote_age_s": max(5.0, speed)},
    )
    typer.echo(
        f"a drawn market at {speed:g} times the speed of time; "
        + ("an agent that was never trained: it has no skill" if agent is None else str(agent))
    )
    now_ms = drawn.start_ms(panel, folder)
    with drawn.drawn_exchange(panel, speed=speed, now_ms=now_ms) as (venue, clock):
        account = Account(made, venue, "paper", folder, eager, chosen, capital, clock, bars)
        trade(replace(account, notes={"demo": True}, watching=watching))
