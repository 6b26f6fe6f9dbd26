"""`stormsail backtest`: trade stored bars with a trained agent, print and save the results."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from stormsail.api.agent_folders import agent_folder
from stormsail.cli.completion import complete_backtest_setting
from stormsail.cli.judging.steps_display import shown_steps
from stormsail.cli.output import publish
from stormsail.cli.plugins import Plugins, load_plugins
from stormsail.cli.times import utc_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from stormsail.core.files.documents import JsonValue
    from stormsail.evaluation.engine.config import BacktestConfig
    from stormsail.evaluation.engine.result import Backtest
    from stormsail.evaluation.stats.statement import Statement
    from stormsail.market.panel import Panel
    from stormsail.modules.agent import Agent

SHOWN = {
    "total_return": ("return", "{:+.2%}"),
    "sharpe": ("Sharpe", "{:.2f}"),
    "max_drawdown": ("max drawdown", "{:.2%}"),
    "cvar": ("CVaR 5 % a bar", "{:.3%}"),
    "turnover": ("turnover a day", "{:.2f}"),
    "fees": ("fees", "{:,.2f}"),
}
"""Columns of the table: metric, title, format."""


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
    baselines: Annotated[
        bool, typer.Option("--baselines", help="Simple strategies on the same bars.")
    ] = False,
    calibration: Annotated[
        bool, typer.Option("--calibration", help="Predicted against realised returns.")
    ] = False,
    conformal: Annotated[
        bool, typer.Option("--conformal", help="The same, and a correction fitted on half of it.")
    ] = False,
    significance: Annotated[
        bool,
        typer.Option("--significance", "--luck", help="Deflated Sharpe ratio, bootstrap, SPA."),
    ] = False,
    performance: Annotated[
        bool,
        typer.Option("--performance", help="Costs by leg, regimes, capacity curve."),
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="path=value, such as filters.lot=0.001.",
            autocompletion=complete_backtest_setting,
        ),
    ] = None,
    workspace: Annotated[
        Path | None,
        typer.Option(help="Folder of the trial ledger; default: the run's own, or `runs`."),
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Trade stored bars with a trained agent in one pass; save metrics, equity and trades.

    Bars that a validation keeps sealed are traded with a warning, and the ledger records it.
    """
    import torch

    from stormsail.api.looks import looking, trial_ledger
    from stormsail.cli.learning.train import kept_words
    from stormsail.core import steps
    from stormsail.core.clock import SystemClock
    from stormsail.core.files.atomic import check_free
    from stormsail.evaluation.engine.files import summary_of, write_backtest
    from stormsail.evaluation.engine.run import backtest as trade

    # small batches gain nothing from threads, and one thread gives the same bytes on any machine
    torch.set_num_threads(1)
    check_free(out)
    load_plugins(plugin)
    agent = _agent(run)
    config = _config(agent, start, end, burn_in, settings or [])
    panel = _panel(agent, data, symbols or [])
    ledger = trial_ledger(run, workspace)
    documents: dict[str, JsonValue] = {}
    tables: dict[str, pa.Table] = {}
    kept = f"nothing was written to {out}"
    sealed = looking(ledger, run, panel, config, _warn)
    with kept_words(kept), shown_steps(SystemClock()), sealed as look:
        steps.began("trading")
        result = trade(agent, panel, config)
        if look is not None:
            look.sharpe_per_bar = result.metrics.sharpe_per_bar.value
            look.bars = len(result.returns)
        _show({"agent": result})
        if engine == "nautilus":
            steps.began("the same decisions through NautilusTrader")
            documents["nautilus"] = _compare_nautilus(result, panel)
        if baselines:
            steps.began("baselines")
            documents["baselines"], tables["baselines.parquet"] = _baselines(result, panel, config)
        if costs:
            steps.began("costs")
            documents["costs"] = _costs(result, panel, agent)
        if stress:
            steps.began("stress")
            documents["stress"] = _stress(agent, panel, config)
        if calibration or conformal:
            steps.began("calibration")
            documents["calibration"] = _calibration(result, panel, conformal=conformal)
        if significance:
            steps.began("significance")
            documents["significance"] = _significance(result, panel, agent, ledger)
        if performance:
            steps.began("performance")
            documents["performance"] = _performance(result, panel)
        write_backtest(out, result, documents=documents, tables=tables)
    publish(out=out, summary=summary_of(result), documents=documents)
    _conclude(result, out)


def _warn(words: str) -> None:
    typer.echo(f"WARNING: {words}", err=True)


def _agent(run: Path) -> "Agent":
    """Return the best agent of a run, or the agent itself."""
    from stormsail.modules.agent import Agent

    return Agent.load(agent_folder(run))


def _config(
    agent: "Agent", start: str | None, end: str | None, burn_in: int | None, settings: "list[str]"
) -> "BacktestConfig":
    """Return the settings: the agent's market, and what the command line changes."""
    from stormsail.core.config.overrides import apply_overrides
    from stormsail.evaluation.engine.config import BacktestConfig

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
        lengths = sorted({str(length) for _, length in stored})
        raise ConfigError(
            "config-inconsistent",
            wrong=f"{data} must hold bars of the interval that the agent was trained on, {wanted}",
            found=f"bars of {', '.join(lengths)}" if lengths else "no bars",
            remedy="Import, fetch or resample them, or train another agent.",
        )
    return load_panel(store, chosen, interval)


def _baselines(
    result: "Backtest", panel: "Panel", config: "BacktestConfig"
) -> "tuple[JsonValue, pa.Table]":
    import pyarrow as pa

    from stormsail.evaluation.robustness.baselines import run_baselines
    from stormsail.evaluation.robustness.stress import figures_document

    baselines = run_baselines(panel, config, like=result)
    _show(baselines)
    curves = {name.replace(" ", "_"): baseline.equity for name, baseline in baselines.items()}
    return figures_document(baselines), pa.table({"ts": result.ts, **curves})


def _costs(result: "Backtest", panel: "Panel", agent: "Agent") -> "JsonValue":
    from stormsail.evaluation.robustness.costs import Mode, break_even, cost_sweep
    from stormsail.evaluation.robustness.stress import figures_document

    modes: tuple[Mode, ...] = ("replay", "decide")
    document: dict[str, JsonValue] = {}
    for mode in modes:
        swept = cost_sweep(result, panel, agent=agent, mode=mode)
        _show({f"{cost:g} bp, {mode}": each for cost, each in swept.items()})
        even = break_even(result, panel, agent=agent, mode=mode)
        answer = even.reason if even.cost_bp is None else f"{even.cost_bp:.2f} bp"
        typer.echo(f"break-even cost ({mode}): {answer}")
        document[mode] = {
            "sweep_bp": figures_document({f"{cost:g}": each for cost, each in swept.items()}),
            "break_even": even.document(),
        }
    return document


def _stress(agent: "Agent", panel: "Panel", config: "BacktestConfig") -> "JsonValue":
    from stormsail.evaluation.robustness.stress import figures_document, stress

    scenarios = stress(agent, panel, config)
    _show(scenarios)
    return figures_document(scenarios)


def _calibration(result: "Backtest", panel: "Panel", *, conformal: bool) -> "JsonValue":
    from stormsail.evaluation.calibration.document import calibration_of
    from stormsail.evaluation.calibration.predictions import closes_of

    closes = [closes_of(result, panel)]
    calibration = calibration_of([result], conformal=conformal, closes=closes)
    for line in calibration.summary:
        typer.echo(line)
    return calibration.document()


def _significance(
    result: "Backtest", panel: "Panel", agent: "Agent", ledger: Path | None
) -> "JsonValue":
    from stormsail.evaluation.robustness.baselines import run_baselines
    from stormsail.evaluation.robustness.significance import significance_of

    name = "buy and hold"
    benchmark = run_baselines(panel, result.config, like=result, names=[name])[name]
    data = agent.binding.values.get("data")
    significance = significance_of(
        result,
        benchmark=benchmark,
        ledger=ledger,
        data_hash=data if isinstance(data, str) else None,
    )
    for line in significance.summary:
        typer.echo(line)
    return significance.document()


def _performance(result: "Backtest", panel: "Panel") -> "JsonValue":
    from stormsail.evaluation.performance.attribution import cost_rows
    from stormsail.evaluation.performance.document import performance_of

    measured = performance_of(result, panel)
    for name, long, short, both in cost_rows(measured.attribution.totals()):
        typer.echo(f"{name}: {both:,.2f} (long {long:,.2f}, short {short:,.2f})")
    return measured.document()


def _compare_nautilus(result: "Backtest", panel: "Panel") -> "JsonValue":
    from stormsail.evaluation.crosscheck.compare import compare_nautilus

    differences = compare_nautilus(result, panel)
    worst = max(differences, key=lambda difference: difference.equity)
    typer.echo(
        f"NautilusTrader {worst.version}: largest difference in equity {worst.equity:.3g} "
        f"({worst.equity_share:.3g} of it, {worst.symbol}), in a position "
        f"{max(each.position for each in differences):.3g}, "
        f"over {sum(each.fills for each in differences)} fills"
    )
    return [difference.document() for difference in differences]


def _show(results: "Mapping[str, Backtest]") -> None:
    """Print one row for each backtest."""
    from rich.console import Console

    from stormsail.cli.tables import Table

    table = Table()
    for title in ("", "bars", "trades", *(title for title, _ in SHOWN.values())):
        table.add_column(title, justify="left" if not title else "right")
    for name, result in results.items():
        metrics = result.metrics.statements()
        cells = [_cell(metrics[metric], form) for metric, (_, form) in SHOWN.items()]
        table.add_row(name, str(len(result.returns)), str(len(result.trades)), *cells)
    Console().print(table)


def _cell(figure: "Statement", form: str) -> str:
    if figure.value is not None:
        return form.format(figure.value)
    return "undefined" if figure.enough else "not enough data"


def _conclude(result: "Backtest", out: Path) -> None:
    """Print terms, warnings about span and symbols, the hash of the orders, and the folder."""
    from stormsail.market.terms import term_lines

    terms = result.notes.get("instruments")
    for line in term_lines(terms if isinstance(terms, dict) else {}):
        typer.echo(line)
    unseen = result.notes.get("unseen_symbols")
    if isinstance(unseen, list) and unseen:
        typer.echo(f"not trained on: {', '.join(str(symbol) for symbol in unseen)}")
    if result.notes.get("overlaps_training"):
        typer.echo("the span overlaps the agent's training span: this is no test of it")
    if result.notes.get("overlaps_validation"):
        typer.echo(
            "the span overlaps the bars on which the agent was chosen: expect less elsewhere"
        )
    if result.stopped_symbols:
        typer.echo(f"stopped before the end: {', '.join(result.stopped_symbols)}")
    if result.delisted_symbols:
        typer.echo(f"delisted before the end: {', '.join(result.delisted_symbols)}")
    assumed = result.notes.get("assumptions")
    if isinstance(assumed, dict) and isinstance(words := assumed["words"], list):
        for sentence in words:
            typer.echo(str(sentence))
    typer.echo(f"{result.config.policy} policy")
    typer.echo(f"orders {result.order_hash}")
    typer.echo(f"wrote {out}")
