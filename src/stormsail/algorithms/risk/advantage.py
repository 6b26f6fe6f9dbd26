"""Risk advantage of every row of a rollout, in reward units.

T rows, B environments, N quantiles, K atoms. Nothing here carries a gradient: risk acts on the
policy through an advantage, and not at all on the critics.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.algorithms.update.critic_targets import atom_weights, next_distribution
from stormsail.algorithms.update.estimates import Estimates
from stormsail.algorithms.update.rollout import Rollout
from stormsail.functional import risk, statistics
from stormsail.modules.agent import Agent

MOST_STARTS = 4096
"""States where episodes begin that are read at most, where the host does not wait."""


class Trace(NamedTuple):
    """Discount and decay of the sum of one-step changes in the `budget` form."""

    gamma: float
    """Discount."""
    lam: float
    """Decay of later steps."""


def predicted_distribution(agent: Agent, rollout: Rollout) -> Tensor:
    """Return the predicted return distribution of each row, [T, B, W], of all critics as one.

    Quantiles are in reward units; probabilities belong to `agent.atoms`.
    """
    joint = agent.network.critic.distribution(rollout.predicted)
    return joint if agent.spec.critic.kind == "categorical" else agent.return_scale.decode(joint)


@torch.no_grad()
def risk_advantage(
    mode: str,
    agent: Agent,
    rollout: Rollout,
    estimates: Estimates,
    *,
    alpha: float,
    level: Tensor | float,
    trace: Trace | None = None,
) -> Tensor:
    """Return the risk advantage of each row, [T, B]; 0 for rows without weight.

    Args:
        mode: `budget` is the change that a step made to the expected shortfall of the whole
            episode below `level`, given its return so far; `state` the same for the tail of each
            state's own return distribution; `episode` the shortfall of the finished episode that a
            step belongs to, minus the mean, and 0 for unfinished ones.
        agent: owns the critics.
        rollout: the transitions.
        estimates: hold the distributional targets.
        alpha: share of worst outcomes.
        level: value at risk of the outcomes, nu, in reward units; a tensor where it may change
            in a captured graph.
        trace: of the `budget` form, sum one-step changes like this instead of reading the atoms of
            the critics' target.
    """
    if mode == "episode":
        advantage = _episode(rollout, alpha=alpha, level=level)
    elif mode == "budget":
        budget = (level - rollout.return_so_far).to(estimates.target.dtype)
        if trace is None:
            advantage = _shortfall(agent, rollout, estimates, budget, alpha=alpha)
        else:
            advantage = _traced(agent, rollout, budget, trace, alpha=alpha)
    else:
        own = predicted_distribution(agent, rollout)
        if agent.spec.critic.kind == "categorical":
            budget = risk.categorical_value_at_risk(own, agent.atoms.to(own.dtype), alpha=alpha)
        else:
            weight = agent.network.critic.weights()
            budget = risk.value_at_risk(own, alpha=alpha, weight=weight)
        advantage = _shortfall(agent, rollout, estimates, budget, alpha=alpha)
    return torch.where(rollout.weight > 0.0, advantage.to(estimates.raw_advantage.dtype), 0.0)


def _shortfall(
    agent: Agent, rollout: Rollout, estimates: Estimates, budget: Tensor, *, alpha: float
) -> Tensor:
    own = predicted_distribution(agent, rollout)
    if agent.spec.critic.kind == "categorical":
        atoms = agent.atoms.to(own.dtype)
        return risk.categorical_budget_advantage(
            estimates.target, own, atoms, budget.to(own.dtype), alpha=alpha
        )
    return risk.budget_advantage(
        estimates.target,
        own,
        budget,
        alpha=alpha,
        weight=agent.network.critic.weights(),
        target_weight=atom_weights(agent, estimates.target),
    )


def _traced(
    agent: Agent, rollout: Rollout, budget: Tensor, trace: Trace, *, alpha: float
) -> Tensor:
    own, following = predicted_distribution(agent, rollout), next_distribution(agent, rollout)
    reward, budget = rollout.reward.to(own.dtype), budget.to(own.dtype)
    flags = (rollout.terminated, rollout.truncated)
    gamma, lam = trace
    if agent.spec.critic.kind == "categorical":
        atoms = agent.atoms.to(own.dtype)
        return risk.categorical_budget_trace(
            reward, following, own, atoms, budget, *flags, alpha=alpha, gamma=gamma, lam=lam
        )
    weight = agent.network.critic.weights()
    return risk.budget_trace(
        reward, following, own, budget, *flags, alpha=alpha, gamma=gamma, lam=lam, weight=weight
    )


def _episode(rollout: Rollout, *, alpha: float, level: Tensor | float) -> Tensor:
    """Return -(nu - D)_+ / alpha of the episode that each row belongs to, centred."""
    total = rollout.return_so_far.double() + rollout.reward.double()
    outcome = torch.full_like(total, torch.nan)
    coming = torch.full_like(total[0], torch.nan)
    for t in range(len(total) - 1, -1, -1):
        coming = torch.where(rollout.ended[t], total[t], coming)
        outcome[t] = coming
    weight = torch.where(outcome.isnan(), 0.0, rollout.weight.double())
    shortfall = (outcome - level).clamp(max=0.0) / alpha
    known = weight > 0.0
    mean = statistics.weighted_mean(torch.where(known, shortfall, 0.0), weight)
    return torch.where(known, shortfall - mean, 0.0)


@torch.no_grad()
def predicted_cvar(agent: Agent, rollout: Rollout, *, alpha: float, estimator: str) -> float:
    """Return the CVaR that the critics predict where episodes begin; NaN if none does.

    It is that of the mixture of all these distributions: an episode begins in one of the states.
    """
    first = predicted_distribution(agent, rollout)[rollout.length == 1]  # [S, W]
    if len(first) == 0:
        return float("nan")
    if agent.spec.critic.kind == "categorical":
        atoms = agent.atoms.to(first.dtype)
        return float(risk.categorical_cvar(first.mean(0), atoms, alpha=alpha))
    weight = agent.network.critic.weights()
    if weight is not None:
        weight = weight.repeat(len(first)) / len(first)
    return float(risk.cvar(first.flatten(), alpha=alpha, estimator=estimator, weight=weight))


@torch.no_grad()
def predicted_cvar_of_some(agent: Agent, rollout: Rollout, *, alpha: float) -> Tensor:
    """Return `predicted_cvar` as a number on the device, without waiting for it.

    Of more than `MOST_STARTS` states where episodes begin so many are taken, evenly in the order of
    time, then of environments: their number must be known to the host.
    """
    starts = (rollout.length == 1).flatten().cumsum(0)
    most, count = min(len(starts), MOST_STARTS), starts[-1]
    place = torch.arange(most, device=starts.device)
    taken = count.clamp(max=most)
    rank = 1 + torch.where(count > most, place * count // most, place.clamp(max=taken - 1))
    row = torch.searchsorted(starts, rank.clamp(min=1)).clamp(max=len(starts) - 1)
    predicted = rollout.predicted.flatten(0, 1)[row]
    first = predicted_distribution(agent, replace(rollout, predicted=predicted))  # [n, W]
    is_there = (place < taken).double() / taken.clamp(min=1)
    if agent.spec.critic.kind == "categorical":
        atoms = agent.atoms.to(first.dtype)
        mixture = (first * is_there[:, None].to(first.dtype)).sum(0)
        cvar = risk.categorical_cvar(mixture, atoms, alpha=alpha)
    else:
        mass = agent.network.critic.weights()
        if mass is None:
            mass = torch.full_like(first[0], 1.0 / first.shape[-1], dtype=torch.float64)
        weight = (is_there[:, None] * mass).flatten()
        cvar = risk.cvar(first.flatten(), alpha=alpha, weight=weight)
    return torch.where(count > 0, cvar.double(), torch.nan)
