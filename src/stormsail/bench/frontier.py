"""`stormsail bench frontier`: what a limit on the tail costs, and whether it holds.

Agents are trained on `crash` bars with limits on the CVaR of episode returns, and without. All are
judged on bars that training never saw, by the same episodes. On the same axes stand

- `penalty`: plain PPO whose reward has k times its square taken off, for several k;
- `scaled`: the agent without a limit, each of its weights multiplied by a number below 1.

A limit holds if the upper end of the 95 % interval of realised CVaR reaches it.
"""

import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.ppo import Ppo
from stormsail.algorithms.task_factory import agent_spec, make_task
from stormsail.core.generators import Generators
from stormsail.core.task import Step, StepInfo, Task
from stormsail.functional import risk
from stormsail.modules.agent import Agent

CONFIG = Path("configs/crash.toml")
"""What is trained, under the current folder."""

SCALES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)
"""Factors on the weights of the agent without a limit."""

CONFIDENT = 1.959963984540054
"""Half width of a 95 % interval in standard errors."""


@dataclass(frozen=True)
class Plan:
    """What is trained."""

    limits: tuple[float, ...] = (-0.2, -0.1, -0.05)
    """On the CVaR of an episode, in log equity."""
    slack: float = -1.0
    """A limit that nothing breaks: the multiplier must come back to 0."""
    infeasible: float = 0.02
    """One that only a sure gain would meet."""
    alphas: tuple[float, ...] = (0.05, 0.1, 0.25)
    """For the last of the limits that is not slack."""
    penalties: tuple[float, ...] = (1.0, 3.0, 10.0)
    gammas: tuple[float, ...] = (0.99, 0.999)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    steps: int = 1_000_000
    episodes: int = 4096


@dataclass(frozen=True)
class Job:
    """One agent."""

    kind: str
    """`free`, `limit` or `penalty`."""
    gamma: float
    seed: int
    steps: int
    episodes: int
    limit: float | None = None
    alpha: float = 0.05
    penalty: float = 0.0
    changes: tuple[tuple[str, Any], ...] = ()
    """Further settings, by path."""


class Row(NamedTuple):
    """What became of one agent, on bars that it never saw."""

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
    greedy_mean: float
    greedy_cvar: float
    multiplier: float
    """At the end of training."""
    largest_multiplier: float
    infeasible_at: int | None
    """Update at which the limit was said to be out of reach."""
    updates: int

    @property
    def holds(self) -> bool | None:
        """Whether the interval of realised CVaR reaches the limit; None without one."""
        return None if self.limit is None else self.holds_limit(self.limit)

    def holds_limit(self, limit: float) -> bool:
        """Whether the interval of realised CVaR reaches a limit."""
        return self.cvar + CONFIDENT * self.cvar_error >= limit


def jobs(plan: Plan) -> list[Job]:
    """Return all agents of a plan."""
    common = {"steps": plan.steps, "episodes": plan.episodes}
    found = []
    for gamma in plan.gammas:
        for seed in plan.seeds:
            one: dict[str, Any] = {"gamma": gamma, "seed": seed, **common}
            found.append(Job("free", **one))
            found += [Job("limit", limit=limit, **one) for limit in plan.limits]
    first: dict[str, Any] = {"gamma": plan.gammas[0], **common}
    for seed in plan.seeds:
        found += [Job("penalty", penalty=k, seed=seed, **first) for k in plan.penalties]
        found.append(Job("limit", limit=plan.slack, seed=seed, **first))
        found.append(Job("limit", limit=plan.infeasible, seed=seed, **first))
        found += [
            Job("limit", limit=plan.limits[1], alpha=alpha, seed=seed, **first)
            for alpha in plan.alphas
            if alpha != 0.05
        ]
    return found


def settings(job: Job) -> TrainConfig:
    """Return the settings of an agent: those of the file, and what the job changes.

    Raises:
        ConfigError: if the file is not there or a change is none.
    """
    changes: dict[str, Any] = {
        "seed": job.seed,
        "ppo.gamma": job.gamma,
        "ppo.total_steps": job.steps,
        "risk.cvar_alpha": job.alpha,
        "risk.cvar_limit": job.limit if job.limit is not None else -0.1,
        "risk.cvar_use_constraint": job.kind == "limit",
        **dict(job.changes),
    }
    assignments = [f"{path}={_written(value)}" for path, value in changes.items()]
    return TrainConfig.load(CONFIG, assignments)


def _written(value: object) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(list(value))
    return f'"{value}"' if isinstance(value, str) else str(value)


class Penalised:
    """A task whose reward has k times its square taken off: mean and variance of each step."""

    def __init__(self, task: Task[Any], penalty: float) -> None:
        self._task, self._penalty = task, penalty
        self.batch, self.device, self.dtype = task.batch, task.device, task.dtype
        self.observation_size = task.observation_size
        self.observation_names, self.actions = task.observation_names, task.actions

    def reset(self, generator: torch.Generator) -> tuple[Any, Tensor]:
        """Start, as the task does."""
        return self._task.reset(generator)

    def step(
        self,
        state: Any,  # noqa: ANN401 - the task's own
        action: Tensor,
        generator: torch.Generator,
    ) -> tuple[Any, Step[StepInfo]]:
        """Step as the task does, and take the penalty off."""
        state, shown = self._task.step(state, action, generator)
        reward = shown.reward - self._penalty * shown.reward.square()
        return state, shown._replace(reward=reward)


def run(job: Job) -> list[Row]:
    """Train an agent and judge it; of the one without a limit, its smaller versions too."""
    torch.set_num_threads(1)
    config = settings(job)
    generators = Generators(config.seed)
    task = make_task(config, batch=config.ppo.n_envs)
    if job.penalty:
        task = Penalised(task, job.penalty)
    agent = Agent(agent_spec(config, task), generators.stream("weights"))
    learner = Ppo(task, agent, config, generators)
    largest, infeasible = 0.0, None
    while learner.steps < config.ppo.total_steps:
        report = learner.update().risk
        if report is None:
            continue
        largest = max(largest, report.multiplier)
        if report.is_infeasible and infeasible is None:
            infeasible = learner.update_count
    scales = (1.0, *SCALES) if job.kind == "free" else (1.0,)
    multiplier = 0.0 if learner.risk is None else learner.risk.dual.multiplier
    last = (multiplier, largest, infeasible, learner.update_count)
    return [_row(job, config, agent, scale, last) for scale in scales]


def _row(
    job: Job,
    config: TrainConfig,
    agent: Agent,
    scale: float,
    last: tuple[float, float, int | None, int],
) -> Row:
    earned, exposure = play(agent, config, episodes=job.episodes, scale=scale, greedy=False)
    greedy, _ = play(agent, config, episodes=job.episodes, scale=scale, greedy=True)
    count = len(earned)
    return Row(
        kind="scaled" if scale != 1.0 else job.kind,
        gamma=job.gamma,
        seed=job.seed,
        limit=job.limit,
        alpha=job.alpha,
        penalty=job.penalty,
        scale=scale,
        mean=float(earned.mean()),
        mean_error=float(earned.std()) / math.sqrt(count),
        cvar=float(risk.empirical_cvar(earned, alpha=0.05)),
        cvar_error=float(risk.empirical_cvar_error(earned, alpha=0.05)),
        exposure=exposure,
        greedy_mean=float(greedy.mean()),
        greedy_cvar=float(risk.empirical_cvar(greedy, alpha=0.05)),
        multiplier=last[0],
        largest_multiplier=last[1],
        infeasible_at=last[2],
        updates=last[3],
    )


@torch.no_grad()
def play(
    agent: Agent, config: TrainConfig, *, episodes: int, scale: float, greedy: bool
) -> tuple[Tensor, float]:
    """Return what episodes on unseen bars earn, and the mean size of the weight.

    The agent decides in an account of its own weights; beside it, on the same bars, an account
    with each weight multiplied by `scale` is what earns.
    """
    market = config.task.market
    smaller = market.model_copy(update={"levels": tuple(scale * level for level in market.levels)})
    other = config.model_copy(update={"task": config.task.model_copy(update={"market": smaller})})
    deciding = make_task(config, batch=episodes, purpose="validation")
    earning = make_task(other, batch=episodes, purpose="validation")
    streams = [torch.Generator().manual_seed(7) for _ in range(3)]
    state, observation = deciding.reset(streams[0])
    held, _ = earning.reset(streams[1])
    memory = agent.initial_memory(episodes)
    levels = torch.tensor(smaller.levels)
    earned = torch.zeros(episodes, dtype=torch.float64)
    running = torch.ones(episodes, dtype=torch.bool)
    exposure = 0.0
    for _ in range(market.episode_bars):
        chosen = agent.decide(observation, memory, deterministic=greedy, generator=streams[2])
        state, shown = deciding.step(state, chosen.action, streams[0])
        held, paid = earning.step(held, chosen.action, streams[1])
        earned += torch.where(running, paid.reward.double(), 0.0)
        exposure += float(levels[chosen.action].abs().mean()) / market.episode_bars
        running &= ~(paid.terminated | paid.truncated)
        observation, memory = shown.observation, chosen.memory
    return earned, exposure


def run_all(wanted: Sequence[Job], *, processes: int) -> list[Row]:
    """Run jobs side by side."""
    if processes == 1:
        return [row for job in wanted for row in run(job)]
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        return [row for rows in pool.map(run, wanted) for row in rows]
