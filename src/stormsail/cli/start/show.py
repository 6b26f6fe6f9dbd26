"""`stormsail show`: what something is, its essential facts, and which commands can come next."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stormsail.cli.output import publish
from stormsail.cli.plugins import Plugins, load_plugins

if TYPE_CHECKING:
    from stormsail.algorithms.config import TrainConfig

UNFIT = 1
"""Exit status for something damaged or foreign."""

STORE = "data"
"""Store of a command that is shown where none is known: the default of `import` and `synth`."""

JOURNAL = "journal.sqlite"
"""File that makes a folder the account of a trader."""

LISTED = 8
"""Symbols that are named one by one."""

SUMMARY = {
    "total_return": ("return", "{:+.2%}"),
    "sharpe": ("Sharpe ratio", "{:.2f}"),
    "max_drawdown": ("max drawdown", "{:.2%}"),
    "cvar": ("CVaR 5 % a bar", "{:.3%}"),
}
"""Metrics of a result: title and format."""


@dataclass
class Found:
    """What a path holds."""

    kind: str
    facts: dict[str, object] = field(default_factory=dict)
    """In order, for people and programs."""
    following: list[str] = field(default_factory=list)
    """Command lines that can come next."""


def show(
    path: Annotated[Path, typer.Argument(help="Folder or file.")],
    plugin: Plugins = None,
) -> None:
    """Say what a folder or file is, and what can be done with it; exit with 1 if it is damaged."""
    from stormsail.core.errors import StormsailError

    load_plugins(plugin)
    kind = _kind(path)
    problem = None
    try:
        content = READERS[kind](path)
    except StormsailError as error:
        content, problem = Found(kind), error
    document = {
        "path": path,
        "kind": content.kind,
        "facts": content.facts,
        "next": content.following,
    }
    publish(**document, problem=None if problem is None else str(problem))
    if problem is not None:
        typer.echo(f"{path}: {kind}, damaged or not readable by this version")
        typer.echo(f"problem: {problem}")
        raise typer.Exit(UNFIT)
    typer.echo(f"{path}: {content.kind}")
    for name, value in content.facts.items():
        typer.echo(f"  {name.replace('_', ' ')}: {_words(value)}")
    for command in content.following:
        typer.echo(f"next: {command}")
    if content.kind == FOREIGN:
        raise typer.Exit(UNFIT)


def _words(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {part}" for name, part in value.items()) or "none"
    if isinstance(value, list | tuple):
        more = f" and {len(value) - LISTED} more" if len(value) > LISTED else ""
        return (", ".join(str(part) for part in value[:LISTED]) + more) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


FOREIGN = "foreign: nothing that stormsail wrote or reads"


def _kind(path: Path) -> str:
    """Return what a path seems to hold, by its files alone.

    Raises:
        ArtifactError: if there is nothing.
    """
    from stormsail.core.errors import ArtifactError

    if not path.exists():
        raise ArtifactError(
            "artifact-missing",
            wrong=f"{path} must be a folder or a file",
            found="nothing there",
            remedy="Check the path.",
        )
    return _kind_of_folder(path) if path.is_dir() else _kind_of_file(path)


def _kind_of_file(path: Path) -> str:
    if path.is_file() and path.suffix == ".toml":
        return "configuration"
    if path.is_file() and path.name == JOURNAL:
        return "account"
    from stormsail.market.checks import SUFFIXES

    return "data file" if path.is_file() and path.suffix.lower() in SUFFIXES else FOREIGN


def _kind_of_folder(path: Path) -> str:
    from stormsail.evaluation.saved import kind_of

    if (path / JOURNAL).is_file():
        return "account"
    if (path / "population.jsonl").is_file():
        return "population"
    if (path / "search.json").is_file():
        return "search"
    if (path / "manifest.json").is_file():
        kind = kind_of(path)
        if kind is not None and kind in READERS:
            return kind
        # a manifest that cannot be read: the files beside it say whose it was
        marks = {"config.toml": "run", "summary.json": "backtest", "validation.json": "validation"}
        marks |= {"attack.json": "attack", "agent.json": "agent"}
        return next((own for name, own in marks.items() if (path / name).is_file()), FOREIGN)
    if (path / "config.toml").is_file():
        return "run"
    if (path / "trials.jsonl").is_file():
        return "workspace"
    if _is_store(path):
        return "store"
    return "workspace" if any(_held(path)) else FOREIGN


def _is_store(path: Path) -> bool:
    """Return whether a folder holds bars: files named by intervals, in folders by symbols."""
    from stormsail.core.errors import StormsailError
    from stormsail.market.interval import Interval
    from stormsail.market.store import FUNDING, symbol_of

    for file in path.glob("*/*.parquet"):
        try:
            symbol_of(file.parent.name)
            if file.stem != FUNDING:
                Interval.parse(file.stem)
        except StormsailError:
            continue
        return True
    return False


def _held(path: Path) -> Iterator[Path]:
    """Yield the runs, results and accounts in a folder."""
    for part in sorted(path.iterdir()):
        with suppress(OSError):  # of another user
            if any((part / name).is_file() for name in ("manifest.json", "config.toml", JOURNAL)):
                yield part


def _line(*words: object, plugins: Iterable[str] = ()) -> str:
    """Return a command line, with the plug-ins that it must be given."""
    brought = [word for file in plugins for word in ("--plugin", file)]
    return shlex.join(["stormsail", *map(str, words), *brought])


# ------------------------------------------------------------------ learning


def _task_facts(config: "TrainConfig") -> dict[str, object]:
    facts: dict[str, object] = {"task": config.task.name, "seed": config.seed}
    if config.task.name == "market":
        data = config.task.data
        facts["bars"] = f"store {data.store}" if data.store else f"synthetic world {data.world}"
        facts["interval"] = data.interval
    if config.risk.cvar_use_constraint:
        facts["limit_on_CVaR"] = config.risk.cvar_limit
    return facts


def _configuration(path: Path) -> Found:
    from stormsail.algorithms.population.config import RunFile

    config = RunFile.load(path)
    facts = {**_task_facts(config), "total_steps": config.ppo.total_steps}
    following = [_line("train", path)]
    if config.task.name == "market":
        following.append(_line("validate", path, "--out", f"{path.stem}-judged"))
    if config.population is not None:
        facts["members_of_population"] = config.population.population_size
        following.append(_line("population", path))
    return Found("configuration", facts, following)


def _run(path: Path) -> Found:
    from stormsail.algorithms.run.folder import read_config
    from stormsail.algorithms.run.plugins import bound_files
    from stormsail.core.errors import StormsailError
    from stormsail.core.files.artifact import verify_artifact

    config = read_config(path)
    steps = _checkpoints(path / "checkpoints")
    total = config.ppo.total_steps
    best = path / "best"
    facts = {**_task_facts(config), "total_steps": total, "last_checkpoint": max(steps, default=0)}
    facts["finished"] = max(steps, default=0) >= total
    facts["checkpoints"] = len(steps)
    facts["best_agent"] = str(best) if best.is_dir() else "none yet"
    plugins = bound_files(path)
    if plugins:
        facts["plug_ins"] = plugins
    more = ("--extend-to", 2 * total) if facts["finished"] else ()
    following = [_line("resume", path, *more, plugins=plugins)]
    if best.is_dir():
        try:
            verify_artifact(best)
        except StormsailError as error:
            facts["best_agent"] = f"{best}, damaged: {error}"
        else:
            is_market = config.task.name == "market"
            following += _of_agent(path, plugins, is_market=is_market, config=config)
    elif steps:
        facts["best_agent"] = "missing: none was saved yet, or its folder was removed"
    return Found("run", facts, following)


def _checkpoints(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return sorted(int(part.name) for part in folder.iterdir() if part.name.isdecimal())


def _of_agent(
    path: Path, plugins: Iterable[str], *, is_market: bool, config: "TrainConfig | None" = None
) -> list[str]:
    commands = []
    if is_market:
        store = config.task.data.store if config else None
        if store is None and config is not None and not Path(STORE).exists():
            drawn = (config.task.data.world, "--interval", config.task.data.interval)
            commands.append(_line("synth", *drawn, "--store", STORE, plugins=plugins))
        words = ("--data", store or STORE, "--out", f"{path.name}-backtest")
        commands.append(_line("backtest", path, *words, plugins=plugins))
    return [*commands, _line("attack", path, "--out", f"{path.name}-attack", plugins=plugins)]


def _agent(path: Path) -> Found:
    from stormsail.core.errors import ArtifactError
    from stormsail.core.plugins import files_of
    from stormsail.modules.agent import PLUGINS, Agent, read_binding

    plugins = files_of(read_binding(path).get(PLUGINS), owner=f"the agent in {path}")
    try:
        agent = Agent.load(path)
    except ArtifactError as error:
        if error.code != "plugin-missing":
            raise
        return Found("agent", {"plug_ins": plugins}, [_line("show", path, plugins=plugins)])
    binding = agent.binding.values
    facts: dict[str, object] = {
        "task": binding.get("task", "unknown"),
        "columns": agent.spec.columns,
        "actions": agent.spec.actions.kind,
        "memory": agent.spec.network.memory,
        "critic": agent.spec.critic.kind,
        "judged_policy": agent.judged_policy,
        "parameters": sum(weight.numel() for weight in agent.parameters()),
    }
    if "interval" in binding:
        facts["interval"] = binding["interval"]
    if plugins:
        facts["plug_ins"] = plugins
    return Found("agent", facts, _of_agent(path, plugins, is_market="interval" in binding))


def _population(path: Path) -> Found:
    from stormsail.algorithms.population.member import member_folder
    from stormsail.algorithms.run.plugins import bound_files
    from stormsail.evaluation.populations import read_population

    read = read_population(path)
    plugins = bound_files(member_folder(path, 0))
    best = read.best
    facts: dict[str, object] = {
        "members": read.size,
        "rounds": len(read.rounds),
        "searched": list(read.search),
        "best_member": "none" if best is None else best,
    }
    if best is not None:
        facts["fitness"] = f"{read.rounds[-1].fitness[best]:.6g}"
    following = [
        _line("population", path / "config.toml", "--out", path, plugins=plugins),
        _line("report", path, "--out", f"{path.name}.html"),
    ]
    return Found("population", facts, following)


def _search(path: Path) -> Found:
    from stormsail.algorithms.run.plugins import bound_files
    from stormsail.algorithms.sweep.trial import trial_folder
    from stormsail.evaluation.searches import read_search

    read = read_search(path)
    plugins: tuple[str, ...] = ()
    facts: dict[str, object] = {
        "trials": len(read.counted),
        "task": read.task,
        "searched": list(read.over),
        "best_trial": "none" if read.best is None else read.best,
    }
    following = [_line("report", path, "--out", f"{path.name}.html")]
    if read.best is not None:
        facts["fitness"] = f"{read.trials[read.best].fitness:.6g}"
        plugins = bound_files(trial_folder(path, read.best))
        following.insert(0, _line("train", path / "best.toml", plugins=plugins))
    more = ("--budget", len(read.counted) + 10, "--out", path)
    following.append(_line("search", path / "config.toml", *more, plugins=plugins))
    return Found("search", facts, following)


def _checkpoint(path: Path) -> Found:
    from stormsail.core.files.artifact import verify_artifact

    verify_artifact(path)
    run = path.resolve().parent.parent
    return Found("checkpoint", {"step": path.name}, [_line("resume", run)])


# ------------------------------------------------------------------ judging


def _result(path: Path) -> Found:
    from stormsail.evaluation.saved import read_result

    result = read_result(path)
    document = result.document
    facts: dict[str, object] = {}
    if result.verdict is not None:
        facts["verdict"] = result.verdict.decision
        facts["because"] = result.verdict.words
    facts |= {
        "symbols": result.symbols,
        "interval": document["interval"],
        "first_bar": document["first_bar"],
        "end": document["end"],
        "bars": len(result.returns),
        "trades": result.trades.num_rows,
    }
    metrics = result.metrics
    for name, (title, form) in SUMMARY.items():
        value = metrics[name].value if name in metrics else None
        facts[title] = "not enough data" if value is None else form.format(value)
    following = [
        _line("report", path, "--out", f"{path.name}.html"),
        _line("performance", path),
    ]
    agent = path.with_name(f"{path.name}-agent")
    if agent.is_dir():
        facts["agent_for_trading"] = str(agent)
        following.append(_line("show", agent))
    return Found(result.kind, facts, following)


def _attack(path: Path) -> Found:
    from stormsail.evaluation.saved import MAIN, kind_of, read_attack

    document = read_attack(path, path.name).document
    settings = document["settings"]
    points = document["points"]
    facts: dict[str, object] = {}
    if isinstance(settings, dict):
        facts = {name: settings.get(name) for name in ("task", "policy", "norm", "episodes")}
    facts["attacks_and_radii"] = len(points) if isinstance(points, list) else 0
    facts["use"] = "`stormsail report` shows it beside a backtest or a validation"
    results = [part for part in sorted(path.parent.iterdir()) if kind_of(part) in MAIN]
    page = f"{path.name}.html"
    return Found("attack", facts, [_line("report", part, path, "--out", page) for part in results])


# ------------------------------------------------------------------ data


def _store(path: Path) -> Found:
    from stormsail.core.clock import iso
    from stormsail.market.store import Store

    store = Store(path)
    facts: dict[str, object] = {}
    held = store.contents()
    for symbol, interval in held:
        bars = store.read(symbol, interval)
        rates = store.read_funding(symbol)
        span = f"{iso(int(bars.ts[0]))} to {iso(int(bars.ts[-1]))}" if len(bars) else "empty"
        funding = "" if rates is None else f", {len(rates):,} funding rates"
        facts[f"{symbol} {interval}"] = f"{len(bars):,} bars, {span}{funding}"
    following = [_line("check", "--store", path)]
    for length in dict.fromkeys(str(interval) for _, interval in held):
        out = f"bars-{length}.toml"
        following.append(_line("init", "bars", "--store", path, "--interval", length, "--out", out))
    return Found("store", facts, following)


def _data_file(path: Path) -> Found:
    facts: dict[str, object] = {"bytes": path.stat().st_size}
    return Found("data file", facts, [_line("check", path), _line("import", path)])


def _workspace(path: Path) -> Found:
    inside = list(_held(path))
    runs = [part for part in inside if (part / "config.toml").is_file()]
    others = [part for part in inside if part not in runs]
    facts: dict[str, object] = {"runs": [part.name for part in runs]}
    if others:
        facts["others"] = [part.name for part in others]
    if (path / "trials.jsonl").is_file():
        with (path / "trials.jsonl").open("rb") as file:
            facts["lines_of_trials"] = sum(1 for _ in file)
    return Found("workspace", facts, [_line("show", part) for part in (runs + others)[:LISTED]])


# ------------------------------------------------------------------ trading


def _account(path: Path) -> Found:
    from stormsail.core.clock import SystemClock
    from stormsail.execution.operator.status import read_status

    folder = path if path.is_dir() else path.parent
    status = read_status(folder, SystemClock())
    facts: dict[str, object] = {
        name: status.meta.get(name, "unknown") for name in ("account", "mode", "interval", "quote")
    }
    facts["life"] = status.life
    facts["kill_switch"] = status.kill_switch or "armed"
    if status.snapshot is not None:
        facts |= {name: status.snapshot[name] for name in ("bars", "equity")}
    following = [_line("status", folder), _line("dashboard", folder)]
    if status.kill_switch is not None:
        following.append(_line("rearm", folder, "--words", "why it is safe"))
    elif status.life != "stopped":
        following.append(_line("stop", folder))
    if (folder / "agent").is_dir():  # of the demonstration
        following.append(_line("replay", folder, "--agent", folder / "agent"))
    return Found("account", facts, following)


def _parity(path: Path) -> Found:
    from stormsail.core.files.artifact import verify_artifact
    from stormsail.evaluation.saved import MAIN, kind_of

    verify_artifact(path)
    results = [part for part in sorted(path.absolute().parent.iterdir()) if kind_of(part) in MAIN]
    facts: dict[str, object] = {"use": "`stormsail report` shows it beside a backtest"}
    page = f"{path.name}.html"
    return Found("parity", facts, [_line("report", part, path, "--out", page) for part in results])


def _foreign(path: Path) -> Found:
    inside = list(_names(path)) if path.is_dir() else []
    facts: dict[str, object] = {"holds": inside} if path.is_dir() else {}
    return Found(FOREIGN, facts, [])


def _names(path: Path) -> Iterator[str]:
    yield from sorted(part.name for part in path.iterdir())


READERS: Mapping[str, Callable[[Path], Found]] = {
    "configuration": _configuration,
    "run": _run,
    "agent": _agent,
    "population": _population,
    "search": _search,
    "checkpoint": _checkpoint,
    "backtest": _result,
    "validation": _result,
    "attack": _attack,
    "store": _store,
    "data file": _data_file,
    "workspace": _workspace,
    "account": _account,
    "parity": _parity,
    FOREIGN: _foreign,
}
"""Reads each kind."""
