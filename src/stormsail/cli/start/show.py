"""`stormsail show`: what something is, its essential facts, and which commands can come next."""

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stormsail.cli.output import publish

if TYPE_CHECKING:
    from stormsail.algorithms.config import TrainConfig

UNFIT = 1
"""Exit status for something damaged or foreign."""

STORE = "data"
"""Store of a command that is shown where none is known: the default of `import` and `synth`."""

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
) -> None:
    """Say what a folder or file is, and what can be done with it; exit with 1 if it is damaged."""
    from stormsail.core.errors import StormsailError

    kind = _kind(path)
    problem = None
    try:
        found = READERS[kind](path)
    except StormsailError as error:
        found, problem = Found(kind), error
    document = {"path": path, "kind": found.kind, "facts": found.facts, "next": found.following}
    publish(**document, problem=None if problem is None else str(problem))
    if problem is not None:
        typer.echo(f"{path}: {kind}, damaged or not readable by this version")
        typer.echo(f"problem: {problem}")
        raise typer.Exit(UNFIT)
    typer.echo(f"{path}: {found.kind}")
    for name, value in found.facts.items():
        typer.echo(f"  {name.replace('_', ' ')}: {_words(value)}")
    for command in found.following:
        typer.echo(f"next: {command}")
    if found.kind == FOREIGN:
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
    from stormsail.market.checks import SUFFIXES

    return "data file" if path.is_file() and path.suffix.lower() in SUFFIXES else FOREIGN


def _kind_of_folder(path: Path) -> str:
    from stormsail.evaluation.saved import kind_of

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
    return "store" if any(path.glob("*/*.parquet")) else FOREIGN


def _line(*words: object) -> str:
    return shlex.join(["stormsail", *map(str, words)])


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
    following = []
    if facts["finished"]:
        following.append(_line("resume", path, "--extend-to", 2 * total))
    else:
        following.append(_line("resume", path))
    if best.is_dir():
        try:
            verify_artifact(best)
        except StormsailError as error:
            facts["best_agent"] = f"{best}, damaged: {error}"
        else:
            following += _of_agent(path, is_market=config.task.name == "market", config=config)
    elif steps:
        facts["best_agent"] = "missing: none was saved yet, or its folder was removed"
    return Found("run", facts, following)


def _checkpoints(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return sorted(int(part.name) for part in folder.iterdir() if part.name.isdecimal())


def _of_agent(path: Path, *, is_market: bool, config: "TrainConfig | None" = None) -> list[str]:
    commands = []
    if is_market:
        store = (config.task.data.store if config else None) or STORE
        tested = f"{path.name}-backtest"
        commands.append(_line("backtest", path, "--data", store, "--out", tested))
    return [*commands, _line("attack", path, "--out", f"{path.name}-attack")]


def _agent(path: Path) -> Found:
    from stormsail.modules.agent import Agent

    agent = Agent.load(path)
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
    return Found("agent", facts, _of_agent(path, is_market="interval" in binding))


def _population(path: Path) -> Found:
    from stormsail.evaluation.populations import read_population

    read = read_population(path)
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
        _line("population", path / "config.toml", "--out", path),
        _line("report", path, "--out", f"{path.name}.html"),
    ]
    return Found("population", facts, following)


def _search(path: Path) -> Found:
    from stormsail.evaluation.searches import read_search

    read = read_search(path)
    facts: dict[str, object] = {
        "trials": len(read.counted),
        "task": read.task,
        "searched": list(read.over),
        "best_trial": "none" if read.best is None else read.best,
    }
    following = [_line("report", path, "--out", f"{path.name}.html")]
    if read.best is not None:
        facts["fitness"] = f"{read.trials[read.best].fitness:.6g}"
        following.insert(0, _line("train", path / "best.toml"))
    more = ("--budget", len(read.counted) + 10, "--out", path)
    return Found("search", facts, [*following, _line("search", path / "config.toml", *more)])


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
    inside = sorted(part for part in path.iterdir() if part.is_dir())
    runs = [part for part in inside if (part / "config.toml").is_file()]
    with (path / "trials.jsonl").open("rb") as file:
        trials = sum(1 for _ in file)
    facts: dict[str, object] = {"runs": [part.name for part in runs], "lines_of_trials": trials}
    return Found("workspace", facts, [_line("show", part) for part in runs[:LISTED]])


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
    FOREIGN: _foreign,
}
"""Reads each kind."""
