"""`stormsail bench bets`: limits on the tail in worlds whose best policy is known exactly.

Agents are trained by the real trainer with one table of settings for all worlds. What the trained
policy makes is computed, not sampled, where its states can be enumerated (`bets_exact`), and stands
beside the best mean that any policy can have under the limit.

A limit is kept if the CVaR of the policy that draws its actions is not below it by more than 5 % of
its size.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from typing import Any, NamedTuple

from stormsail import __version__
from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.ppo import Ppo, Update
from stormsail.bench.bets.bets_exact import evaluate, solve
from stormsail.bench.bets.bets_unseen import UNSEEN
from stormsail.bench.bets.bets_worlds import KNOWN, Bets, World
from stormsail.bench.campaign import RowLog, damaged
from stormsail.bench.learner.learn_rows import run_key
from stormsail.bench.processes import one_thread, one_thread_processes
from stormsail.bench.seeds import Seeds
from stormsail.bench.training import train_agent
from stormsail.bench.verdicts import Verdict
from stormsail.core.config.overrides import apply_overrides
from stormsail.core.errors import ArgumentError, nearest

TOLERANCE = 0.05
"""Share of the limit's size by which CVaR may be below it."""

WORLDS: dict[str, World] = {**KNOWN, **UNSEEN}
"""All worlds by name."""

_GROUPS = {"known": tuple(KNOWN), "unseen": tuple(UNSEEN)}


@dataclass(frozen=True)
class Plan:
    """Settings of all runs, whatever the world."""

    n_envs: int = 64
    """Environments; each plays an episode in an update."""
    updates: int = 160
    changes: tuple[str, ...] = ()
    """Further settings as `path=value`."""


@dataclass(frozen=True)
class Job:
    """One agent."""

    world: World
    seed: int
    plan: Plan
    limited: bool = True
    """False trains without the limit, to see what a slack one costs."""

    @property
    def config(self) -> TrainConfig:
        """All settings of the run.

        Raises:
            ConfigError: for a change that is none.
        """
        world, plan = self.world, self.plan
        rows = world.bars + 1  # the row after an end starts the next episode
        given: dict[str, Any] = {
            "seed": self.seed,
            "task": {"name": "CartPole-v1"},  # not made: the task is passed beside the settings
            "network": {"memory": "none"},
            "target": {"kind": "mc"},
            "validation": {"every_updates": 0},
            "ppo": {
                "gamma": 1.0,
                "n_envs": plan.n_envs,
                "n_steps": rows,
                "total_steps": plan.updates * rows * plan.n_envs,
            },
        }
        if self.limited:
            given["risk"] = {
                "cvar_use_constraint": True,
                "cvar_alpha": world.alpha,
                "cvar_limit": world.limit,
            }
        changes = plan.changes
        if not self.limited:
            changes = tuple(change for change in changes if not change.startswith("risk."))
        return derive(TrainConfig.from_mapping(apply_overrides(given, changes)))

    @property
    def key(self) -> str:
        """Hash of everything that the run depends on."""
        settings = self.config.config_hash()
        return run_key({"world": repr(self.world), "settings": settings, "seed": self.seed})


class Row(NamedTuple):
    """Result of one agent."""

    key: str
    world: str
    seed: int
    limited: bool
    limit: float
    best: float
    """Largest mean of any policy under the limit."""
    mean: float
    cvar: float
    value_at_risk: float
    mean_error: float
    cvar_error: float
    multiplier: float
    """At the end of training."""
    updates: int
    seconds: float
    """Of training."""
    version: str

    @property
    def kept(self) -> bool:
        """Whether CVaR is not below the limit by more than 5 % of its size."""
        return self.cvar >= self.limit - TOLERANCE * abs(self.limit)

    @property
    def share(self) -> float:
        """Mean over the best mean."""
        return self.mean / self.best


def named(text: str | None) -> tuple[World, ...]:
    """Return the worlds that a text with commas names, also as `known` or `unseen`; None is all.

    Raises:
        ArgumentError: for a name that is not known.
    """
    if text is None:
        return tuple(WORLDS.values())
    parts = [part.strip() for part in text.split(",")]
    chosen = [name for part in parts for name in _GROUPS.get(part, (part,))]
    for name in chosen:
        if name not in WORLDS:
            near = nearest(name, (*_GROUPS, *WORLDS))
            raise ArgumentError(
                "missing-argument",
                wrong=f"`--worlds` must name some of {', '.join((*_GROUPS, *WORLDS))}",
                found=f"`{name}`",
                remedy=f"Did you mean `{near}`?" if near else "Take one of these.",
            )
    return tuple(WORLDS[name] for name in chosen)


def jobs(worlds: Iterable[World], seeds: Iterable[int], plan: Plan) -> list[Job]:
    """Return an agent for each world and seed; where the limit is slack, one without it too."""
    return [
        Job(world, seed, plan, limited)
        for world in worlds
        for seed in seeds
        for limited in ((True, False) if world.slack else (True,))
    ]


def run(job: Job) -> Row:
    """Train an agent and compute what its policy makes, in this process and on one thread."""
    world, multiplier = job.world, 0.0

    def watch(_learner: Ppo, update: Update) -> None:
        nonlocal multiplier
        multiplier = 0.0 if update.risk is None else update.risk.multiplier

    with one_thread():
        started = time.perf_counter()
        task = Bets(world, batch=job.plan.n_envs)
        learner = train_agent(task, job.config, on_update=watch)
        seconds = time.perf_counter() - started
        evaluation = evaluate(learner.agent, world)
        best = solve(world).mean
    return Row(
        key=job.key,
        world=world.name,
        seed=job.seed,
        limited=job.limited,
        limit=world.limit,
        best=best,
        multiplier=multiplier,
        updates=learner.update_count,
        seconds=seconds,
        version=__version__,
        **evaluation._asdict(),
    )


def run_all(
    planned: Sequence[Job],
    *,
    processes: int,
    kept: RowLog | None = None,
    say: Callable[[Row], None] = lambda _: None,
) -> list[Row]:
    """Return the row of each job, in the order of the jobs.

    Args:
        planned: to be done.
        processes: how many at a time; one is this process itself.
        kept: rows of finished runs; those are not trained again, and each new one is added at once.
        say: called with each new row.

    Raises:
        ArtifactError: if a kept row has other fields.
    """
    rows = {} if kept is None else {row.key: row for row in _kept_rows(kept)}
    left = [job for job in planned if job.key not in rows]
    for row in _finished(left, processes):
        rows[row.key] = row
        if kept is not None:
            kept.append(row._asdict())
        say(row)
    return [rows[job.key] for job in planned]


def _kept_rows(kept: RowLog) -> Iterator[Row]:
    for number, line in enumerate(kept.lines, start=1):
        try:
            yield Row(**line)
        except TypeError as error:
            raise damaged(kept.path, number, str(error)) from None


def _finished(left: Sequence[Job], processes: int) -> Iterator[Row]:
    """Yield rows as they are finished, the longest episodes first."""
    order = sorted(left, key=lambda job: -job.world.bars)
    if processes == 1:
        yield from map(run, order)
        return
    with one_thread_processes(processes) as pool:
        for future in as_completed([pool.submit(run, job) for job in order]):
            yield future.result()


@dataclass(frozen=True)
class Summary:
    """All agents of a world."""

    world: str
    limit: float
    best: float
    limited: bool
    mean: Seeds
    share: Seeds
    """Mean over the best mean."""
    cvar: Seeds
    kept: int
    """Agents that keep the limit."""
    multiplier: Seeds


def summaries(rows: Sequence[Row]) -> list[Summary]:
    """Return a line for each world, with and without its limit."""
    groups: dict[tuple[str, bool], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.world, row.limited), []).append(row)
    return [
        Summary(
            world=world,
            limit=group[0].limit,
            best=group[0].best,
            limited=limited,
            mean=Seeds([row.mean for row in group], spec=".4g", alone=0.0),
            share=Seeds([row.share for row in group], spec=".2f", alone=0.0),
            cvar=Seeds([row.cvar for row in group], spec=".4g", alone=0.0),
            kept=sum(row.kept for row in group),
            multiplier=Seeds([row.multiplier for row in group], spec=".3g", alone=0.0),
        )
        for (world, limited), group in groups.items()
    ]


def verdicts(rows: Sequence[Row], worlds: Mapping[str, World] = WORLDS) -> list[Verdict]:
    """Return the claims about limits, as far as there are runs for them."""
    limited = [row for row in rows if row.limited]
    if not limited:
        return []
    by_world = {line.world: line for line in summaries(limited)}
    return [
        *_kept_verdicts(limited, by_world),
        *(_warning_verdict(line) for line in by_world.values() if worlds[line.world].warns),
        *(_slack_verdict(name, rows) for name in by_world if worlds[name].slack),
    ]


def _kept_verdicts(limited: Sequence[Row], by_world: Mapping[str, Summary]) -> list[Verdict]:
    keeping = [row for row in limited if row.kept]
    shares = {name: line.kept / len(line.cvar.values) for name, line in by_world.items()}
    worst = min(shares, key=lambda name: shares[name])
    mean = Seeds([row.share for row in keeping]).mean if keeping else 0.0
    return [
        Verdict(
            "limits are kept within 5 % of their size in at least 80 % of all runs",
            f"{len(keeping)} of {len(limited)}",
            len(keeping) >= 0.8 * len(limited),
        ),
        Verdict(
            "in no world in fewer than 3 of 5",
            f"least in {worst}, {by_world[worst].kept} of {len(by_world[worst].cvar.values)}",
            shares[worst] >= 0.6,
        ),
        Verdict(
            "runs that keep their limit have at least 70 % of the best mean on average",
            f"{100.0 * mean:.0f} %",
            mean >= 0.7,
        ),
    ]


def _warning_verdict(line: Summary) -> Verdict:
    count = len(line.cvar.values)
    return Verdict(
        f"{line.world}: the limit is kept in 4 of 5, with at least 80 % of the best mean",
        f"{line.kept} of {count}, {100.0 * line.share.mean:.0f} %",
        line.kept >= 0.8 * count and line.share.mean >= 0.8,
    )


def _slack_verdict(name: str, rows: Sequence[Row]) -> Verdict:
    mean = {
        limited: [row.mean for row in rows if row.world == name and row.limited is limited]
        for limited in (True, False)
    }
    claim = f"{name}: a slack limit costs at most 2 % of the mean without one"
    if not mean[False]:
        return Verdict(claim, "no runs without a limit", None)
    ratio = Seeds(mean[True]).mean / Seeds(mean[False]).mean
    return Verdict(claim, f"{100.0 * ratio:.1f} %", ratio >= 0.98)
