"""Evaluation of an agent during training: greedy episodes, one in each environment."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stormsail.core.task import Task, action_mask
from stormsail.evaluation.stats import figures
from stormsail.functional import risk
from stormsail.modules.agent import Agent

MAX_STEPS = 20_000
"""Episodes are cut off after this many steps."""


class Evaluation(NamedTuple):
    """Returns of the greedy episodes of an evaluation."""

    score: float
    """Mean return."""
    spread: float
    """Standard deviation of the returns; 0 for a single one."""
    episodes: int
    unfinished: int
    """Episodes that were cut off at `MAX_STEPS`."""
    sharpe_per_bar: float | None = None
    """Mean over deviation of the simple returns of all steps, not annualised. None where rewards
    are no log returns, or where all of them are equal."""
    bars: int = 0
    """Steps in that ratio; episodes may share bars."""
    cvar: float = math.nan
    """Mean of the worst share `alpha` of the returns."""
    cvar_error: float = math.nan
    """Its standard error."""

    def breach(self, limit: float | None) -> float:
        """Return by how much a limit on CVaR is broken, max(0, limit - CVaR); 0 without a limit.

        By the estimate alone, without its interval: that of a few episodes is so wide that it
        reaches limits which are broken several times over. The configuration demands enough
        episodes (`ValidationConfig.check_tail`). A CVaR of NaN breaks every limit by infinity.
        """
        if limit is None:
            return 0.0
        return math.inf if math.isnan(self.cvar) else max(0.0, limit - self.cvar)


@torch.no_grad()
def evaluate(
    task: Task[Any],
    agent: Agent,
    generator: torch.Generator,
    *,
    max_steps: int = MAX_STEPS,
    log_returns: bool = False,
    alpha: float = 0.05,
) -> Evaluation:
    """Run the first episode of every environment to its end with greedy actions.

    One episode each, not as many as fit into some time: short ones would count more often.

    Args:
        task: a batch as large as the number of episodes.
        agent: decides.
        generator: of the starts; equal ones give equal episodes, so that agents can be compared.
        max_steps: see `MAX_STEPS`.
        log_returns: whether a reward is the log return of a bar, so that there is a Sharpe ratio.
        alpha: share of worst episodes in CVaR.
    """
    state, observation = task.reset(generator)
    memory = agent.initial_memory(task.batch)
    running = torch.ones(task.batch, dtype=torch.bool, device=task.device)
    totals = torch.zeros(task.batch, dtype=torch.float64, device=task.device)
    returns: list[Tensor] = []
    for _ in range(max_steps):
        mask = action_mask(task, state)
        decision = agent.decide(observation, memory, deterministic=True, mask=mask)
        state, step = task.step(state, decision.action, generator)
        observation, memory = step.observation, decision.memory
        reward = step.reward.double()
        totals = totals + torch.where(running, reward, 0.0)
        if log_returns:
            returns.append(reward[running].expm1())
        running = running & ~(step.terminated | step.truncated)
        if not bool(running.any()):
            break
    return _summary(totals, running, alpha)._replace(**_ratio(returns))


def _summary(totals: Tensor, running: Tensor, alpha: float) -> Evaluation:
    return Evaluation(
        score=float(totals.mean()),
        spread=float(totals.std()) if len(totals) > 1 else 0.0,
        episodes=len(totals),
        unfinished=int(running.sum()),
        cvar=float(risk.empirical_cvar(totals, alpha=alpha)),
        cvar_error=float(risk.empirical_cvar_error(totals, alpha=alpha)),
    )


def _ratio(returns: list[Tensor]) -> dict[str, Any]:
    """Return the Sharpe ratio of one bar and the number of bars; nothing without returns."""
    if not returns:
        return {}
    bars = torch.cat(returns)
    finite = bool(bars.isfinite().all())
    ratio = float(figures.per_bar_sharpe(bars.cpu().numpy())) if finite else math.nan
    return {"sharpe_per_bar": ratio if math.isfinite(ratio) else None, "bars": len(bars)}
