"""`stormsail backtest`: let a trained agent trade stored bars once, and say what came out."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from stormsail.cli.times import utc_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from stormsail.core.files.documents import JsonValue
    from stormsail.evaluation.engine.run import Backtest, BacktestConfig
    from stormsail.evaluation.stats.statement import Statement
    from stormsail.market.panel import Panel
    from stormsail.modules.agent import Agent

BEST = "best"
"""Folder of a run in which its best agent lies."""

TRIALS = "trials.jsonl"
"""File of a workspace in which every training and validation is recorded."""

SHOWN = {
    "total_return": ("return", "{:+.2%}"),
    "sharpe": ("Sharpe", "{:.2f}"),
    "drawdown": ("deepest fall", "{:.2%}"),
    "cvar": ("CVaR 5 % a bar", "{:.3%}"),
    "turnover": ("turnover a day", "{:.2f}"),
    "fees": ("fees", "{:,.2f}"),
}
"""Figures of the table: metric, title, form."""


def backtest(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or of an agent.")],
    data: Annotated[Path, typer.Option(help="Store with the bars.")],
    out: Annotated[Path, typer.Option(help="New folder for the results.")],
    symbols: Annotated[
        list[str] | None, typer.Option(help="Symbols to trade; default: all of the store.")
    ] = None,
    start: Annotated[str | None, typer.Option("--from", help="First day or time, UTC.")] = None,
    end: Annotated[
        str | None, typer.Option("--to", help="Day or time of the first bar left out, UTC.")
    ] = None,
    burn_in: Annotated[
        int | None, typer.Option(min=0, help="Bars on which the memory is warmed up.")
    ] = None,
    engine: Annotated[
        Literal["own", "nautilus"],
        typer.Option(help="nautilus: the same decisions through NautilusTrader as well."),
    ] = "own",
    costs: Annotated[bool, typer.Option("--costs", help="Sweep costs; find the break-even.")] = (
        False
    ),
    stress: Annotated[bool, typer.Option("--stress", help="Crashes, spreads, bad data.")] = False,
    baselines: Annotated[bool, typer.Option("--baselines", help="Rivals on the same bars.")] = (
        False
    ),
    calibration: Annotated[
        bool, typer.Option("--calibration", help="Whether the critic's predictions came true.")
    ] = False,
    conformal: Annotated[
        bool, typer.Option("--conformal", help="The same, and a correction fitted on half of it.")
    ] = False,
    luck: Annotated[bool, typer.Option("--luck", help="How much of the result is luck.")] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="path=value, such as filters.lot=0.001.")
    ] = None,
) -> None:
    """Trade stored bars with a trained agent, in one pass and to the last cent."""
    import torch

    from stormsail.evaluation.engine.files import write_backtest
    from stormsail.evaluation.engine.run import backtest as trade

    # small batches gain nothing from threads, and one thread gives the same bytes on any machine
    torch.set_num_threads(1)
    _check_free(out)
    agent = _agent(run)
    config = _config(agent, start, end, burn_in, settings or [])
    panel = _panel(agent, data, symbols or [])
    found = trade(agent, panel, config)
    _show({"agent": found})
    documents: dict[str, JsonValue] = {}
    tables: dict[str, pa.Table] = {}
    if engine == "nautilus":
        documents["nautilus"] = _compared(found, panel)
    if baselines:
        documents["baselines"], tables["baselines.parquet"] = _rivals(found, panel, config)
    if costs:
        documents["costs"] = _swept(found, panel, agent)
    if stress:
        documents["stress"] = _stressed(agent, panel, config)
    if calibration or conformal:
        documents["calibration"] = _calibrated(found, panel, conformal=conformal)
    if luck:
        documents["luck"] = _luck(found, panel, agent, run)
    write_backtest(out, found, documents=documents, tables=tables)
    _conclude(found, out)


def _check_free(out: Path) -> None:
    """Refuse a path that is taken before anything is computed."""
    from stormsail.core.errors import ArtifactError

    if out.exists():
        raise ArtifactError(
            "artifact-exists",
            wrong=f"{out} must not exist yet",
            found="something of that name",
            remedy="Choose another path; an artifact is never overwritten.",
        )


def _agent(run: Path) -> "Agent":
    """Return the best agent of a run, or the agent itself."""
    from stormsail.core.errors import ArtifactError
    from stormsail.modules.agent import Agent

    best = run / BEST
    if best.is_dir():
        return Agent.load(best)
    if (run / "checkpoints").is_dir() or (run / "config.toml").is_file() or not run.is_dir():
        raise ArtifactError(
            "artifact-missing",
            wrong=f"{run} must be a run with an agent in `{BEST}`",
            found="a run that has saved none yet" if run.is_dir() else "no such folder",
            remedy="Train until the first validation; `validation.every_updates` says when.",
        )
    return Agent.load(run)


def _config(
    agent: "Agent", start: str | None, end: str | None, burn_in: int | None, settings: "list[str]"
) -> "BacktestConfig":
    """Return the settings: the agent's market, and what the command line changes."""
    from stormsail.core.config.overrides import apply_overrides
    from stormsail.evaluation.engine.run import BacktestConfig

    data: dict[str, object] = {}
    if isinstance(market := agent.binding.values.get("market"), dict):
        data["market"] = market
    data |= {"start": utc_time("--from", start).isoformat()} if start else {}
    data |= {"end": utc_time("--to", end).isoformat()} if end else {}
    data |= {"burn_in": burn_in} if burn_in is not None else {}
    return BacktestConfig.from_mapping(apply_overrides(data, settings))


def _panel(agent: "Agent", data: Path, symbols: "list[str]") -> "Panel":
    """Return the stored bars of the agent's interval."""
    from stormsail.core.errors import ConfigError
    from stormsail.market.interval import Interval
    from stormsail.market.panel import load_panel
    from stormsail.market.store import Store

    store = Store(data)
    stored = store.contents()
    wanted = agent.binding.values.get("interval")
    interval = Interval.parse(wanted) if isinstance(wanted, str) else None
    chosen = symbols or [symbol for symbol, length in stored if length == interval]
    if interval is None or not chosen:
        found = sorted({str(length) for _, length in stored})
        raise ConfigError(
            "config-inconsistent",
            wrong=f"{data} must hold bars of the interval that the agent was trained on, {wanted}",
            found=f"bars of {', '.join(found)}" if found else "no bars",
            remedy="Import, fetch or resample them, or train another agent.",
        )
    return load_panel(store, chosen, interval)


def _rivals(
    found: "Backtest", panel: "Panel", config: "BacktestConfig"
) -> "tuple[JsonValue, pa.Table]":
    import pyarrow as pa

    from stormsail.evaluation.robustness.baselines import run_baselines
    from stormsail.evaluation.robustness.stress import stress_document

    rivals = run_baselines(panel, config, like=found)
    _show(rivals)
    curves = {name.replace(" ", "_"): one.equity for name, one in rivals.items()}
    return stress_document(rivals), pa.table({"ts": found.ts, **curves})


def _swept(found: "Backtest", panel: "Panel", agent: "Agent") -> "JsonValue":
    from stormsail.evaluation.robustness.costs import Mode, break_even, cost_sweep
    from stormsail.evaluation.robustness.stress import stress_document

    modes: tuple[Mode, ...] = ("replay", "decide")
    told: dict[str, JsonValue] = {}
    for mode in modes:
        swept = cost_sweep(found, panel, agent=agent, mode=mode)
        _show({f"{cost:g} bp, {mode}": one for cost, one in swept.items()})
        even = break_even(found, panel, agent=agent, mode=mode)
        answer = even.reason if even.cost_bp is None else f"{even.cost_bp:.2f} bp"
        typer.echo(f"break-even cost ({mode}): {answer}")
        told[mode] = {
            "sweep_bp": stress_document({f"{cost:g}": one for cost, one in swept.items()}),
            "break_even": even.document(),
        }
    return told


def _stressed(agent: "Agent", panel: "Panel", config: "BacktestConfig") -> "JsonValue":
    from stormsail.evaluation.robustness.stress import stress, stress_document

    found = stress(agent, panel, config)
    _show(found)
    return stress_document(found)


def _calibrated(found: "Backtest", panel: "Panel", *, conformal: bool) -> "JsonValue":
    from stormsail.evaluation.calibration.document import calibration_document, closes_of

    told = calibration_document([found], conformal=conformal, closes=[closes_of(found, panel)])
    _summarise(told)
    return told


def _luck(found: "Backtest", panel: "Panel", agent: "Agent", run: Path) -> "JsonValue":
    from stormsail.evaluation.robustness.baselines import run_baselines
    from stormsail.evaluation.robustness.significance import luck_of

    rival = run_baselines(panel, found.config, like=found, names=["buy and hold"])["buy and hold"]
    data = agent.binding.values.get("data")
    told = luck_of(
        found,
        benchmark=rival,
        ledger=_trials(run),
        data_hash=data if isinstance(data, str) else None,
    )
    _summarise(told)
    return told


def _summarise(told: "JsonValue") -> None:
    """Print the sentences of a document."""
    lines = told.get("summary") if isinstance(told, dict) else None
    for line in lines if isinstance(lines, list) else []:
        typer.echo(line)


def _trials(run: Path) -> Path | None:
    """Return the trial ledger of the workspace: beside the run, or beside the run of an agent."""
    place = run.resolve()
    beside = (place.parent / TRIALS, place.parent.parent / TRIALS)
    return next((one for one in beside if one.is_file()), None)


def _compared(found: "Backtest", panel: "Panel") -> "JsonValue":
    from stormsail.evaluation.crosscheck.compare import compare_nautilus

    apart = compare_nautilus(found, panel)
    worst = max(apart, key=lambda one: one.equity)
    typer.echo(
        f"NautilusTrader {worst.version}: largest difference in equity {worst.equity:.3g} "
        f"({worst.equity_share:.3g} of it, {worst.symbol}), in a position "
        f"{max(one.position for one in apart):.3g}, over {sum(one.fills for one in apart)} fills"
    )
    return [one.document() for one in apart]


def _show(found: "Mapping[str, Backtest]") -> None:
    """Print one row for each backtest."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for title in ("", "bars", "trades", *(title for title, _ in SHOWN.values())):
        table.add_column(title, justify="left" if not title else "right", no_wrap=True)
    for name, one in found.items():
        measured = one.metrics.statements()
        cells = [_cell(measured[metric], form) for metric, (_, form) in SHOWN.items()]
        table.add_row(name, str(len(one.returns)), str(len(one.trades)), *cells)
    Console(width=None if Console().is_terminal else 140).print(table)


def _cell(figure: "Statement", form: str) -> str:
    if figure.value is not None:
        return form.format(figure.value)
    return "undefined" if figure.enough else "not enough data"


def _conclude(found: "Backtest", out: Path) -> None:
    """Say what a reader must not overlook, and where everything lies."""
    unseen = found.notes.get("unseen_symbols")
    if isinstance(unseen, list) and unseen:
        names = ", ".join(str(one) for one in unseen)
        typer.echo(f"not trained on: {names}")
    if found.notes.get("overlaps_training"):
        typer.echo("the span overlaps the agent's training span: this is no test of it")
    if found.notes.get("overlaps_validation"):
        typer.echo(
            "the span overlaps the bars on which the agent was chosen: expect less elsewhere"
        )
    stopped: Sequence[str] = [
        symbol
        for column, symbol in enumerate(found.symbols)
        if bool(found.flags["stopped"][:, column].any())
    ]
    if stopped:
        typer.echo(f"stopped before the end: {', '.join(stopped)}")
    typer.echo(f"orders {found.order_hash}")
    typer.echo(f"wrote {out}")
