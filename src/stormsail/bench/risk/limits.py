"""`stormsail bench limits`: agents under a limit on stored bars, judged on later ones.

For each seed an agent is trained without a limit and one with it, on the bars before a day. Both
trade the bars from that day on, which they never saw: episodes of all symbols, at starts so close
that they overlap. Beside the agents stand, on the same episodes,

- `free`, the agent without a limit, `volatility`, a target of realised volatility, and `hold`, each
  scaled until its CVaR is that of the agent under the limit ("equal CVaR"). The scale is chosen on
  the judged bars themselves, an advantage that the agent does not have;
- the same three, scaled until their CVaR is the limit on episodes of the training bars
  ("preset"): what somebody would do who does not learn limits.

A limit is kept where the estimate of CVaR reaches it, proven where the whole 95 % interval does,
and not proven broken where its upper end does. Intervals are of blocks of time, as
`bench.risk.unseen` says.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from stormsail import __version__
from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.ppo import Ppo, Update
from stormsail.algorithms.run.tasks import make_task, market_data, market_panel
from stormsail.bench.campaign import RowLog, damaged
from stormsail.bench.learner.learn_rows import run_key
from stormsail.bench.processes import as_finished
from stormsail.bench.risk.limits_baselines import (
    Match,
    Scalable,
    at_cvar,
    hold,
    shares,
    volatility_target,
)
from stormsail.bench.risk.unseen import (
    Account,
    Decider,
    Episodes,
    estimated_cvar,
    estimated_mean,
    trade_agent,
    trade_weights,
)
from stormsail.bench.training import train_agent
from stormsail.core.clock import iso
from stormsail.core.errors import DataError
from stormsail.core.shipped import located
from stormsail.market.interval import Interval
from stormsail.modules.agent import Agent

CONFIG = Path("configs/limits.toml")
"""Configuration of the agents, under the current folder."""

TRADES_FROM = 0.01
"""Smallest mean exposure of an agent that trades: what holds nothing keeps every limit."""

AT_ITS_CVAR, IN_TRAINING = "equal CVaR", "preset"
"""How baselines are scaled."""

LIMIT, FREE = "limit", "free"
"""The two agents."""

_DAY_MS = 86_400_000


class Horizon(NamedTuple):
    """Length of an episode, and what goes with it."""

    days: int
    limit: float
    """On CVaR at 5 %, log growth: about what a quarter of equity in the market had before 2024."""
    starts: int
    """Episodes that start within the length of one."""


HORIZONS = {"week": Horizon(7, -0.08, 7), "day": Horizon(1, -0.03, 4)}
"""By name."""


@dataclass(frozen=True)
class Job:
    """Agents of one seed, with a limit and without."""

    seed: int
    steps: int
    store: str
    symbols: tuple[str, ...]
    """Empty takes all of the store."""
    train_end: datetime
    """Open time of the first bar that is judged by."""
    horizon: str
    """One of `HORIZONS`."""
    limit: float
    changes: tuple[str, ...] = ()
    """Further settings of both agents, `path=value`."""
    greedy: bool = False
    """Judge the likeliest actions instead of drawn ones, which a limit is trained on."""

    def settings(self, *, is_limited: bool) -> TrainConfig:
        """Return the settings of an agent: those of the file, and what the job changes.

        Raises:
            ConfigError: if the file is not there or a change is none.
            DataError: if the store has no bars, or none on one side of `train_end`.
        """
        config = TrainConfig.load(located(CONFIG), self.changes)
        length = Interval.parse(config.task.data.interval).milliseconds
        bars = HORIZONS[self.horizon].days * _DAY_MS // length
        changes: dict[str, Any] = {
            "seed": self.seed,
            "ppo.total_steps": self.steps,
            "task.data.store": self.store,
            "task.data.symbols": self.symbols,
            "task.market.episode_bars": bars,
            "risk.cvar_limit": self.limit,
            "risk.cvar_use_constraint": is_limited,
        }
        config = config.replace(**changes)
        share = _share_after(config, self.train_end)
        return derive(config.replace(**{"task.data.validation_share": share}))

    @cached_property
    def key(self) -> str:
        """Hash of all that the result depends on: settings and bars, wherever the store lies."""
        configs = [self.settings(is_limited=limited) for limited in (False, True)]
        settings = [x.replace(**{"task.data.store": None}).config_hash() for x in configs]
        bars = market_panel(configs[0]).digest()
        return run_key({"settings": settings, "bars": bars, "greedy": self.greedy})


def _share_after(config: TrainConfig, train_end: datetime) -> float:
    """Return the share of the bars from a time on, exact in the row that it means."""
    ts = market_panel(config).ts
    time_ms = round(1000 * train_end.timestamp())
    cut = int(torch.searchsorted(ts, time_ms))
    if not 0 < cut < len(ts):
        raise DataError(
            "data-span",
            wrong="there must be bars before `--train-end` to train on and later ones to judge by",
            found=f"bars that open from {iso(int(ts[0]))} to {iso(int(ts[-1]))}, and "
            f"{iso(time_ms)}",
            remedy="Choose a time between the two.",
        )
    return (len(ts) - cut - 0.5) / len(ts)


class Result(NamedTuple):
    """What an agent or a baseline made of the unseen episodes."""

    name: str
    """`limit`, `free`, `hold`, a baseline and how it was scaled, or the agent's other actions."""
    multiplier: float
    """Of the weights, or the annual volatility that is the target."""
    is_equal: bool
    """Whether the scale gives the CVaR that it was chosen for; true where none was."""
    mean: float
    """Log growth of an episode."""
    mean_half: float
    """Half of its 95 % interval."""
    cvar: float
    """Mean of the worst 5 % of the episodes."""
    cvar_low: float
    """Lower end of its 95 % interval."""
    cvar_high: float
    apart_mean: float
    """Of the episodes that do not overlap."""
    apart_cvar: float
    apart_low: float
    """Lower end of the 95 % interval of their CVaR."""
    apart_high: float
    exposure: float
    turnover: float
    invested: float
    gain: float
    """Mean of the agent under the limit, less this one's, by the same episodes."""
    gain_half: float

    def is_kept(self, limit: float) -> bool:
        """Whether the estimate keeps a limit."""
        return self.cvar >= limit

    def is_proven(self, limit: float) -> bool:
        """Whether the whole interval keeps it."""
        return self.cvar_low >= limit

    def is_not_broken(self, limit: float) -> bool:
        """Whether the interval does not prove that it is broken."""
        return self.cvar_high >= limit

    @property
    def trades(self) -> bool:
        """Whether more than next to nothing is held."""
        return self.exposure >= TRADES_FROM


class Row(NamedTuple):
    """Results of one seed."""

    key: str
    seed: int
    horizon: str
    limit: float
    steps: int
    changes: tuple[str, ...]
    greedy: bool
    """Whether the likeliest actions were judged."""
    symbols: tuple[str, ...]
    train_end: str
    judged_to: str
    episodes: int
    apart: int
    """Episodes that do not overlap."""
    blocks: int
    """Of time, that the intervals are of."""
    multiplier: float
    """Of the limit, at the end of training."""
    largest_multiplier: float
    infeasible_at: int | None
    """Update at which the limit was reported as out of reach."""
    seconds: float
    """Of training, both agents."""
    version: str
    results: tuple[Result, ...]

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> "Row":
        """Return the row of JSON fields.

        Raises:
            TypeError: if they are not its own.
        """
        results = tuple(Result(**result) for result in fields["results"])
        lists = {name: tuple(fields[name]) for name in ("changes", "symbols")}
        return cls(**{**fields, **lists, "results": results})

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON holds them."""
        return {**self._asdict(), "results": [result._asdict() for result in self.results]}

    def result(self, name: str) -> Result:
        """Return the result of that name."""
        return next(result for result in self.results if result.name == name)


class _Training(NamedTuple):
    """An agent, and fields of `Row` that its training gives."""

    agent: Agent
    multiplier: float
    largest_multiplier: float
    infeasible_at: int | None


def _train(config: TrainConfig) -> _Training:
    multipliers, infeasible = [0.0], []

    def watch(learner: Ppo, update: Update) -> None:
        if update.risk is not None:
            multipliers.append(update.risk.multiplier)
            if update.risk.is_infeasible:
                infeasible.append(learner.update_count)

    task = make_task(config, batch=config.ppo.n_envs)
    learner = train_agent(task, config, on_update=watch)
    return _Training(
        agent=learner.agent,
        multiplier=multipliers[-1],
        largest_multiplier=max(multipliers),
        infeasible_at=infeasible[0] if infeasible else None,
    )


def run(job: Job) -> Row:
    """Train the agents of a seed and judge them on unseen bars."""
    config = job.settings(is_limited=True)
    data, horizon = market_data(config), HORIZONS[job.horizon]
    unseen = Episodes.of(config, data.validation, starts=horizon.starts)
    seen = Episodes.of(config, data.train, starts=1)
    start = time.perf_counter()
    free, limited = _train(job.settings(is_limited=False)), _train(config)
    seconds = time.perf_counter() - start
    return Row(
        key=job.key,
        seed=job.seed,
        horizon=job.horizon,
        limit=job.limit,
        steps=job.steps,
        changes=job.changes,
        greedy=job.greedy,
        symbols=data.panel.symbols,
        train_end=iso(data.validation.start_ms),
        judged_to=iso(data.validation.end_ms),
        episodes=len(unseen.row),
        apart=int(unseen.apart.sum()),
        blocks=len(unseen.block.unique()),
        multiplier=limited.multiplier,
        largest_multiplier=limited.largest_multiplier,
        infeasible_at=limited.infeasible_at,
        seconds=seconds,
        version=__version__,
        results=judge(free.agent, limited.agent, unseen, seen, limit=job.limit, greedy=job.greedy),
    )


def judge(
    free: Decider,
    limited: Decider,
    unseen: Episodes,
    seen: Episodes,
    *,
    limit: float,
    greedy: bool,
) -> tuple[Result, ...]:
    """Return the results of both agents and of all baselines on unseen episodes.

    Args:
        free: agent trained without a limit.
        limited: agent trained with it.
        unseen: episodes that are judged by.
        seen: those of training, on which baselines are set to the limit.
        limit: on CVaR.
        greedy: judge the likeliest actions; else drawn ones, and the other way stands beside.
    """
    own = trade_agent(limited, unseen, greedy=greedy)
    loose = trade_agent(free, unseen, greedy=greedy)
    before = trade_agent(free, seen, greedy=greedy)
    cvar = estimated_cvar(own.log_growth, unseen.block).value
    judged = [shares(FREE, loose.weights), volatility_target(unseen), hold(unseen)]
    trained = [shares(FREE, before.weights), volatility_target(seen), hold(seen)]
    matches = {f"{x.name}, {AT_ITS_CVAR}": at_cvar(unseen, x, cvar) for x in judged}
    for strategy, earlier in zip(judged, trained, strict=True):
        scale = at_cvar(seen, earlier, limit)
        matches[f"{strategy.name}, {IN_TRAINING}"] = _rescaled(unseen, strategy, scale)
    other = trade_agent(limited, unseen, greedy=not greedy)
    whole = trade_weights(unseen, hold(unseen).weights(1.0))
    beside = f"{LIMIT}, {'drawn' if greedy else 'likeliest'}"
    accounts = {LIMIT: own, FREE: loose, beside: other, "hold": whole}
    unscaled = {name: Match(1.0, account, is_equal=True) for name, account in accounts.items()}
    every = {**unscaled, **matches}
    return tuple(_result(name, match, own, unseen) for name, match in every.items())


def _rescaled(episodes: Episodes, strategy: Scalable, match: Match) -> Match:
    """Return a strategy on other episodes at the multiplier of a match."""
    account = trade_weights(episodes, strategy.weights(match.multiplier))
    return match._replace(account=account)


def _result(name: str, match: Match, own: Account, episodes: Episodes) -> Result:
    account = match.account
    growth, apart = account.log_growth, episodes.apart
    mean = estimated_mean(growth, episodes.block)
    cvar = estimated_cvar(growth, episodes.block)
    alone = estimated_cvar(growth[apart], episodes.week[apart])
    gain = estimated_mean(own.log_growth - growth, episodes.block)
    return Result(
        name=name,
        multiplier=match.multiplier,
        is_equal=match.is_equal,
        mean=mean.value,
        mean_half=mean.high - mean.value,
        cvar=cvar.value,
        cvar_low=cvar.low,
        cvar_high=cvar.high,
        apart_mean=float(growth[apart].mean()),
        apart_cvar=alone.value,
        apart_low=alone.low,
        apart_high=alone.high,
        exposure=account.exposure,
        turnover=account.turnover,
        invested=account.invested,
        gain=gain.value,
        gain_half=gain.high - gain.value,
    )


def stored_rows(path: Path, lines: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the rows of a file of finished runs.

    Raises:
        ArtifactError: if a line is not a row of this command.
    """
    rows = []
    for number, fields in enumerate(lines, start=1):
        try:
            rows.append(Row.parse(fields))
        except (TypeError, KeyError) as error:
            raise damaged(path, number, f"{type(error).__name__}: {error}") from None
    return rows


def run_all(
    planned: Sequence[Job],
    *,
    processes: int,
    kept: RowLog | None = None,
    say: Callable[[Row], None] = lambda _: None,
) -> list[Row]:
    """Return the rows of jobs: those of the file, and of the others once they are done.

    Args:
        planned: what is wanted.
        processes: how many jobs run at a time.
        kept: file of finished jobs, to which every new one is added.
        say: called with each new row.

    Raises:
        ArtifactError: if a line of the file is not a row of this command.
    """
    known = {} if kept is None else {row.key: row for row in stored_rows(kept.path, kept.lines)}

    missing = [job for job in planned if job.key not in known]
    for row in as_finished(run, missing, processes=processes):
        known[row.key] = row
        if kept is not None:
            kept.append(row.as_dict())
        say(row)
    return [known[job.key] for job in planned]
