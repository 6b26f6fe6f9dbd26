"""From a rollout and its estimates to the risk advantage of every row, in reward units.

T rows, B environments, N quantiles, K atoms. Nothing here carries a gradient: the policy feels the
tail through an advantage, the critics do not feel it at all.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.algorithms.update.critic_targets import next_distribution
from stormsail.algorithms.update.estimates import Estimates
from stormsail.algorithms.update.rollout import Rollout
from stormsail.functional import risk, statistics
from stormsail.functional.risk import trace as risk_trace
from stormsail.modules.agent import Agent


class Trace(NamedTuple):
    """How one-step changes are summed to a risk advantage."""

    gamma: float
    """Discount."""
    lam: float
    """Decay of later steps."""


def predicted_distribution(agent: Agent, rollout: Rollout) -> Tensor:
    """Return the law that the critics gave to each row, [T, B, W], of all critics as one.

    Quantiles are in reward units; probabilities belong to `agent.atoms`.
    """
    law = agent.network.critic.distribution(rollout.predicted)
    return law if agent.spec.critic.kind == "categorical" else agent.return_scale.decode(law)


@torch.no_grad()
def risk_advantage(
    mode: str,
    agent: Agent,
    rollout: Rollout,
    estimates: Estimates,
    *,
    alpha: float,
    level: float,
    trace: Trace | None = None,
) -> Tensor:
    """Return the risk advantage of each row, [T, B]; 0 for rows without weight.

    Args:
        mode: `budget` asks how much a step changed the shortfall of the whole episode below
            `level`, given what it had earned; `state` the same for the tail of each state's own
            law; `episode` gives every step of a finished episode its shortfall below `level`,
            minus the mean, and 0 to the steps of one that is not finished.
        agent: gives the laws.
        rollout: what happened.
        estimates: give the distributional targets.
        alpha: share of worst outcomes.
        level: value at risk of the outcomes, nu, in reward units.
        trace: of the `budget` form, sum one-step changes like this instead of reading the atoms of
            the critics' target.
    """
    if mode == "episode":
        found = _episode(rollout, alpha=alpha, level=level)
    elif mode == "budget":
        budget = (level - rollout.earned).to(estimates.target.dtype)
        if trace is None:
            found = _shortfall(agent, rollout, estimates, budget, alpha=alpha)
        else:
            found = _traced(agent, rollout, budget, trace, alpha=alpha)
    else:
        law = predicted_distribution(agent, rollout)
        if agent.spec.critic.kind == "categorical":
            budget = risk.categorical_value_at_risk(law, agent.atoms.to(law.dtype), alpha=alpha)
        else:
            budget = risk.value_at_risk(law, alpha=alpha)
        found = _shortfall(agent, rollout, estimates, budget, alpha=alpha)
    return torch.where(rollout.weight > 0.0, found.to(estimates.raw_advantage.dtype), 0.0)


def _shortfall(
    agent: Agent, rollout: Rollout, estimates: Estimates, budget: Tensor, *, alpha: float
) -> Tensor:
    law = predicted_distribution(agent, rollout)
    if agent.spec.critic.kind == "categorical":
        atoms = agent.atoms.to(law.dtype)
        return risk.categorical_budget_advantage(
            estimates.target, law, atoms, budget.to(law.dtype), alpha=alpha
        )
    return risk.budget_advantage(estimates.target, law, budget, alpha=alpha)


def _traced(
    agent: Agent, rollout: Rollout, budget: Tensor, trace: Trace, *, alpha: float
) -> Tensor:
    law, reached = predicted_distribution(agent, rollout), next_distribution(agent, rollout)
    reward, budget = rollout.reward.to(law.dtype), budget.to(law.dtype)
    flags = (rollout.terminated, rollout.truncated)
    gamma, lam = trace
    if agent.spec.critic.kind == "categorical":
        atoms = agent.atoms.to(law.dtype)
        return risk_trace.categorical_budget_trace(
            reward, reached, law, atoms, budget, *flags, alpha=alpha, gamma=gamma, lam=lam
        )
    return risk_trace.budget_trace(
        reward, reached, law, budget, *flags, alpha=alpha, gamma=gamma, lam=lam
    )


def _episode(rollout: Rollout, *, alpha: float, level: float) -> Tensor:
    """Return -(nu - D)_+ / alpha of the episode that each row belongs to, centred."""
    total = rollout.earned.double() + rollout.reward.double()
    outcome = torch.full_like(total, torch.nan)
    coming = torch.full_like(total[0], torch.nan)
    for t in range(len(total) - 1, -1, -1):
        coming = torch.where(rollout.ended[t], total[t], coming)
        outcome[t] = coming
    weight = torch.where(outcome.isnan(), 0.0, rollout.weight.double())
    found = (outcome - level).clamp(max=0.0) / alpha
    known = weight > 0.0
    mean = statistics.weighted_mean(torch.where(known, found, 0.0), weight)
    return torch.where(known, found - mean, 0.0)


@torch.no_grad()
def predicted_cvar(agent: Agent, rollout: Rollout, *, alpha: float, estimator: str) -> float:
    """Return the CVaR that the critics predict where episodes begin; NaN if none does.

    It is that of the mixture of all their laws: an episode begins in one of these states.
    """
    law = predicted_distribution(agent, rollout)[rollout.length == 1]  # [S, W]
    if len(law) == 0:
        return float("nan")
    if agent.spec.critic.kind == "categorical":
        atoms = agent.atoms.to(law.dtype)
        return float(risk.categorical_cvar(law.mean(0), atoms, alpha=alpha))
    return float(risk.cvar(law.flatten(), alpha=alpha, estimator=estimator))
