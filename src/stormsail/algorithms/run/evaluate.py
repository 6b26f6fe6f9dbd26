"""Judging an agent while it learns: episodes without exploration, one for each environment."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stormsail.core.task import Task
from stormsail.evaluation.stats import figures
from stormsail.functional import risk
from stormsail.modules.agent import Agent

MAX_STEPS = 20_000
"""An episode that has not ended by then is judged by what it has earned."""


class Judged(NamedTuple):
    """What greedy episodes earned."""

    score: float
    """Mean return."""
    spread: float
    """Standard deviation of the returns; 0 for a single one."""
    episodes: int
    unfinished: int
    """Episodes that were cut off because they did not end."""
    sharpe_per_bar: float | None = None
    """Mean over deviation of the steps' simple returns, all episodes together, not annualised.
    None where rewards are no log returns, or where all of them are equal."""
    bars: int = 0
    """Steps that it comes from; episodes may share bars."""
    cvar: float = math.nan
    """Mean of the worst returns."""
    cvar_error: float = math.nan
    """Standard error of it."""

    def breach(self, limit: float | None) -> float:
        """Return by how much a limit on the tail is broken, max(0, limit - CVaR); 0 without one.

        By the estimate alone, without its interval: that of a few episodes is so wide that it
        reaches limits which are broken several times over. Settings ask for enough episodes
        (`ValidationConfig.check_tail`). A tail that is no number breaks every limit by infinity.
        """
        if limit is None:
            return 0.0
        return math.inf if math.isnan(self.cvar) else max(0.0, limit - self.cvar)


@torch.no_grad()
def judge(
    task: Task[Any],
    agent: Agent,
    generator: torch.Generator,
    *,
    max_steps: int = MAX_STEPS,
    log_returns: bool = False,
    alpha: float = 0.05,
) -> Judged:
    """Play the first episode of every environment to its end, always the likeliest action.

    One episode each, not as many as fit into some time: short ones would count more often.

    Args:
        task: a batch as large as the number of episodes.
        agent: who plays.
        generator: of the starts; equal ones give equal episodes, so that agents can be compared.
        max_steps: see `MAX_STEPS`.
        log_returns: whether a reward is the log return of a bar, so that there is a Sharpe ratio.
        alpha: share of worst episodes that the tail is made of.
    """
    state, observation = task.reset(generator)
    memory = agent.initial_memory(task.batch)
    running = torch.ones(task.batch, dtype=torch.bool, device=task.device)
    earned = torch.zeros(task.batch, dtype=torch.float64, device=task.device)
    returns: list[Tensor] = []
    for _ in range(max_steps):
        decision = agent.decide(observation, memory, deterministic=True)
        state, step = task.step(state, decision.action, generator)
        observation, memory = step.observation, decision.memory
        reward = step.reward.double()
        earned = earned + torch.where(running, reward, 0.0)
        if log_returns:
            returns.append(reward[running].expm1())
        running = running & ~(step.terminated | step.truncated)
        if not bool(running.any()):
            break
    return _judged(earned, running, alpha)._replace(**_ratio(returns))


def _judged(earned: Tensor, running: Tensor, alpha: float) -> Judged:
    return Judged(
        score=float(earned.mean()),
        spread=float(earned.std()) if len(earned) > 1 else 0.0,
        episodes=len(earned),
        unfinished=int(running.sum()),
        cvar=float(risk.empirical_cvar(earned, alpha=alpha)),
        cvar_error=float(risk.empirical_cvar_error(earned, alpha=alpha)),
    )


def _ratio(returns: list[Tensor]) -> dict[str, Any]:
    """Return the Sharpe ratio of one bar and how many it comes from; nothing without returns."""
    if not returns:
        return {}
    found = torch.cat(returns)
    finite = bool(found.isfinite().all())
    ratio = float(figures.per_bar_sharpe(found.cpu().numpy())) if finite else math.nan
    return {"sharpe_per_bar": ratio if math.isfinite(ratio) else None, "bars": len(found)}
