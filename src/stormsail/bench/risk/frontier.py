"""`stormsail bench frontier`: what a limit on the tail costs, and whether it holds.

Agents are trained on `crash` bars with limits on the CVaR of episode returns, and without. All are
evaluated on bars that training never saw, by the same episodes. On the same axes stand

- `penalty`: plain PPO whose reward has k times its square taken off, for several k;
- `scaled`: the agent without a limit, each of its weights multiplied by a number below 1;
- `rule`: a fixed rule that knows the world and holds nothing while a warning stands, everything
  otherwise, and the same scaled down. It is not learned: it shows what can be learned.

Most crashes come after a warning, and so do so many calm bars that the mean gains next to nothing
from minding it. Without warnings (`--warned 0`) no feature separates bad bars from good ones, and
all that a limit can do is to hold less.

Three things are said of a limit, each harder than the one before, by the realised CVaR of one agent
and its 95 % interval:

- *held by interval*: the upper end reaches the limit, so a breach is not proven;
- *kept by estimate*: the estimate itself reaches it;
- *proven kept*: the lower end lies at or above it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stormsail.algorithms.config import RiskConfig, TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.ppo import Ppo, Update
from stormsail.algorithms.run.tasks import make_task, market_data
from stormsail.bench.campaign import RowLog
from stormsail.bench.learner.learn_rows import run_key
from stormsail.bench.resumed import run_missing
from stormsail.bench.risk.frontier_baselines import Penalised, StepsAside
from stormsail.bench.seeds import NORMAL_95
from stormsail.bench.training import train_agent
from stormsail.core.shipped import located
from stormsail.core.task import Task
from stormsail.functional import risk
from stormsail.functional._checks import check_choice
from stormsail.market.simulator import Simulator
from stormsail.modules.agent import Agent

CONFIG = Path("configs/crash.toml")
"""Configuration of the agents, under the current folder."""

SCALES = (0.1, 0.25, 0.5, 0.75)
"""Factors on the weights of the agent without a limit."""

KINDS = ("free", "limit", "slack", "infeasible", "alpha", "penalty", "rule")
"""What agents are trained for; those of `scaled` come with those of `free`."""

ALPHA = 0.05
"""Tail that all are measured by, whatever they were trained for."""

_EPISODE_SEED = 7
"""Of the episodes, the same for all."""


@dataclass(frozen=True)
class Plan:
    """Which agents are trained."""

    limits: tuple[float, ...] = (-0.2, -0.1, -0.05)
    """On the CVaR of an episode, in log equity."""
    slack: float = -1.0
    """A limit that nothing breaks: the multiplier must come back to 0."""
    infeasible: float = 0.02
    """One that only a sure gain would meet."""
    alphas: tuple[float, ...] = (0.05, 0.1, 0.25)
    """Shares of worst episodes that the limit in the middle is also set on."""
    penalties: tuple[float, ...] = (1.0, 3.0, 10.0)
    gammas: tuple[float, ...] = (0.99, 0.999)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    steps: int = 1_500_000
    episodes: int = 2048
    warned: float = 0.8
    """Share of the crashes that a warning precedes; with 0 the warnings mean nothing."""
    changes: tuple[tuple[str, Any], ...] = ()
    """Further settings of all agents, by path."""

    @property
    def middle(self) -> float:
        """The limit that other tails are tried with."""
        return self.limits[len(self.limits) // 2]


@dataclass(frozen=True)
class Job:
    """One agent."""

    kind: str
    """One of `KINDS`."""
    gamma: float
    seed: int
    steps: int
    episodes: int
    limit: float | None = None
    alpha: float = 0.05
    penalty: float = 0.0
    warned: float = 0.8
    changes: tuple[tuple[str, Any], ...] = ()
    """Further settings, by path."""

    @property
    def key(self) -> str:
        """Hash of the settings with all defaults spelt out, and of what else the rows depend on."""
        document = {**asdict(self), "settings": settings(self).model_dump(mode="json")}
        return run_key({**document, "scales": SCALES, "alpha_measured": ALPHA})


class Row(NamedTuple):
    """Result of one agent, on bars that it never saw."""

    kind: str
    gamma: float
    seed: int
    limit: float | None
    alpha: float
    penalty: float
    scale: float
    mean: float
    """Of the episode returns, in log equity."""
    mean_error: float
    cvar: float
    """Mean of the worst 5 % of them, whatever alpha was trained for."""
    cvar_error: float
    exposure: float
    """Mean size of the weight."""
    greedy_mean: float | None
    """With the likeliest action each time; None for smaller weights."""
    greedy_cvar: float | None
    multiplier: float
    """At the end of training."""
    largest_multiplier: float
    infeasible_at: int | None
    """Update at which the limit was reported as out of reach."""
    updates: int
    warned: float | None = None
    """Share of the crashes that a warning precedes; None in rows of earlier versions."""

    @property
    def held_by_interval(self) -> bool | None:
        """Whether the upper end of CVaR's interval reaches the limit; None without one."""
        return None if self.limit is None else not self.breaks(self.limit)

    @property
    def kept_by_estimate(self) -> bool | None:
        """Whether the estimate of CVaR reaches the limit; None without one."""
        return None if self.limit is None else self.cvar >= self.limit

    @property
    def proven_kept(self) -> bool | None:
        """Whether the lower end of CVaR's interval reaches the limit; None without one."""
        if self.limit is None:
            return None
        return self.cvar - NORMAL_95 * self.cvar_error >= self.limit

    def breaks(self, limit: float) -> bool:
        """Whether a breach of a limit is proven: the upper end of CVaR's interval is below it."""
        return self.cvar + NORMAL_95 * self.cvar_error < limit


def jobs(plan: Plan, kinds: Sequence[str] = KINDS) -> list[Job]:
    """Return the agents of a plan that are of these kinds.

    Free agents and limits come at every discount, the others at the first.

    Raises:
        ChoiceError: for a kind that is not known.
    """
    for kind in kinds:
        check_choice(kind, KINDS, name="kinds")
    planned = []
    for place, gamma in enumerate(plan.gammas):
        for seed in plan.seeds:
            common: dict[str, Any] = {
                "gamma": gamma, "seed": seed, "steps": plan.steps, "episodes": plan.episodes,
                "warned": plan.warned, "changes": plan.changes,
            }  # fmt: skip
            planned.append(Job("free", **common))
            planned += [Job("limit", limit=limit, **common) for limit in plan.limits]
            if place == 0:
                planned += _others(plan, common)
    return [job for job in planned if job.kind in kinds]


def _others(plan: Plan, common: dict[str, Any]) -> list[Job]:
    return [
        Job("slack", limit=plan.slack, **common),
        Job("infeasible", limit=plan.infeasible, **common),
        *(Job("alpha", limit=plan.middle, alpha=x, **common) for x in plan.alphas if x != ALPHA),
        *(Job("penalty", penalty=penalty, **common) for penalty in plan.penalties),
        Job("rule", **common),
    ]


def settings(job: Job) -> TrainConfig:
    """Return the settings of an agent: those of the file, and what the job changes.

    Raises:
        ConfigError: if the file is not there or a change is none.
    """
    changes: dict[str, Any] = {
        "seed": job.seed,
        # bars of its own for each seed: how many crashes fall on either side is chance, too
        "task.data.world_seed": job.seed,
        "task.data.world_parameters.warning_share": job.warned,
        "ppo.gamma": job.gamma,
        "ppo.total_steps": job.steps,
        "risk.cvar_alpha": job.alpha,
        "risk.cvar_limit": job.limit if job.limit is not None else -0.1,
        "risk.cvar_use_constraint": job.limit is not None,
        **dict(job.changes),
    }
    if job.limit is None or changes.get("risk.form") == "budget":
        # nothing aims: a margin belongs to the form `critic`
        changes["risk.cvar_margin"] = RiskConfig().cvar_margin
    return derive(TrainConfig.load(located(CONFIG)).replace(**changes))


class _Training(NamedTuple):
    """Fields of `Row` that training gives."""

    multiplier: float = 0.0
    largest_multiplier: float = 0.0
    infeasible_at: int | None = None
    updates: int = 0


def run(job: Job) -> list[Row]:
    """Train an agent and evaluate it; of one without a limit, its smaller versions too."""
    config = settings(job)
    if job.kind == "rule":
        task = make_task(config, batch=1, purpose="evaluation")
        rule = StepsAside(task.observation_names, len(config.task.market.offered_levels))
        return _rows(job, config, rule, _Training())
    task = make_task(config, batch=config.ppo.n_envs)
    if job.penalty:
        task = Penalised(task, job.penalty)
    multipliers, infeasible = [0.0], []

    def watch(learner: Ppo, update: Update) -> None:
        if update.risk is not None:
            multipliers.append(update.risk.multiplier)
            if update.risk.is_infeasible:
                infeasible.append(learner.update_count)

    learner = train_agent(task, config, on_update=watch)
    training = _Training(
        multiplier=0.0 if learner.risk is None else learner.risk.multiplier,
        largest_multiplier=max(multipliers),
        infeasible_at=infeasible[0] if infeasible else None,
        updates=learner.update_count,
    )
    return _rows(job, config, learner.agent, training)


def _rows(
    job: Job, config: TrainConfig, agent: Agent | StepsAside, training: _Training
) -> list[Row]:
    """Return the row of an agent, and of one without a limit those of its smaller weights."""
    scales = SCALES if job.kind in ("free", "rule") else ()
    accounts = evaluate(agent, config, episodes=job.episodes, greedy=False, scales=scales)
    (greedy,) = evaluate(agent, config, episodes=job.episodes, greedy=True)
    likeliest = (float(greedy.log_growth.mean()), _cvar(greedy.log_growth))
    return [
        Row(
            kind="scaled" if job.kind == "free" and scale != 1.0 else job.kind,
            gamma=job.gamma,
            seed=job.seed,
            limit=job.limit,
            alpha=job.alpha,
            penalty=job.penalty,
            scale=scale,
            mean=float(account.log_growth.mean()),
            mean_error=float(account.log_growth.std()) / math.sqrt(len(account.log_growth)),
            cvar=_cvar(account.log_growth),
            cvar_error=float(risk.empirical_cvar_error(account.log_growth, alpha=ALPHA)),
            exposure=account.exposure,
            greedy_mean=likeliest[0] if scale == 1.0 else None,
            greedy_cvar=likeliest[1] if scale == 1.0 else None,
            warned=job.warned,
            **training._asdict(),
        )
        for scale, account in zip((1.0, *scales), accounts, strict=True)
    ]


def _cvar(returns: Tensor) -> float:
    return float(risk.empirical_cvar(returns, alpha=ALPHA))


class AccountResult(NamedTuple):
    """Result of one account over all episodes."""

    log_growth: Tensor
    """Of equity, float64 [episodes]."""
    exposure: float
    """Mean size of the weight."""


class _Accounts(NamedTuple):
    """One market that offers the weights of several accounts."""

    task: Task[Any]
    levels: Tensor
    """All weights on offer."""
    places: Tensor
    """Which of them an action means in each account, int64 [accounts, actions]."""


def _accounts(config: TrainConfig, scales: Sequence[float], episodes: int) -> _Accounts:
    """Return unseen bars on which every account may hold its own share of each weight.

    What is observed does not depend on the weights on offer, and laying out the bars is most of
    the work, so one market serves all.
    """
    data, market = market_data(config), config.task.market
    table = [[scale * level for level in market.offered_levels] for scale in scales]
    offered = sorted({weight for row in table for weight in row})
    task = Simulator(
        data.panel,
        market.model_copy(update={"levels": tuple(offered)}),
        batch=episodes,
        features=data.features,
        scaler=data.scaler,
        span=data.validation,
    )
    index = torch.tensor([[offered.index(weight) for weight in row] for row in table])
    return _Accounts(task, torch.tensor(offered, dtype=torch.float64), index)


@torch.no_grad()
def evaluate(
    agent: Agent | StepsAside,
    config: TrainConfig,
    *,
    episodes: int,
    greedy: bool,
    scales: Sequence[float] = (),
) -> list[AccountResult]:
    """Return the results of episodes on unseen bars: the agent's account, then smaller ones.

    The agent decides in its own account. Beside it, on the same bars, is one for each scale, which
    holds that share of each weight. An episode is over for an account where it ends for that
    account or for the agent's.
    """
    task, levels, index = _accounts(config, (1.0, *scales), episodes)
    streams = [torch.Generator().manual_seed(_EPISODE_SEED) for _ in index]
    states, seen = map(list, zip(*map(task.reset, streams), strict=True))
    observation, memory = seen[0], agent.initial_memory(episodes)
    actions = torch.Generator().manual_seed(_EPISODE_SEED)
    growth = torch.zeros(len(index), episodes, dtype=torch.float64)
    size, bars = torch.zeros_like(growth), torch.zeros_like(growth)
    running = torch.ones(len(index), episodes, dtype=torch.bool)
    for _ in range(config.task.market.episode_bars):
        chosen = agent.decide(observation, memory, deterministic=greedy, generator=actions)
        places = index[:, chosen.action]  # [accounts, episodes]
        inputs = zip(states, places.unbind(0), streams, strict=True)
        steps = [task.step(*account) for account in inputs]
        states = [state for state, _ in steps]
        growth += running * torch.stack([step.reward.double() for _, step in steps])
        size += running * levels[places].abs()
        bars += running
        ended = torch.stack([step.terminated | step.truncated for _, step in steps])
        running &= ~(ended | ended[0])
        observation, memory = steps[0][1].observation, chosen.memory
    exposure = (size.sum(-1) / bars.sum(-1)).tolist()
    return [AccountResult(*account) for account in zip(growth, exposure, strict=True)]


def run_all(
    planned: Sequence[Job],
    *,
    processes: int,
    log: RowLog | None = None,
    say: Callable[[Row], None] = lambda _: None,
) -> list[Row]:
    """Run what the log does not hold yet; `say` gets each new agent's row when it is there."""
    outcomes = run_missing(
        run, planned, row=Row, processes=processes, log=log, say=lambda rows: say(rows[0])
    )
    return [row for rows in outcomes for row in rows]
