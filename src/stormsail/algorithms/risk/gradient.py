"""Gradient norm of the risk term alone."""

from dataclasses import replace

import torch
from torch import Tensor

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.risk.report import RiskReport
from stormsail.algorithms.update.estimates import deviation
from stormsail.algorithms.update.losses import Batch, legacy_cvar, select
from stormsail.algorithms.update.rollout import Rollout, cut_rows
from stormsail.functional.advantage import RunningMoments
from stormsail.modules.actions import grid_log_prob
from stormsail.modules.agent import Agent


def risk_gradient_norm(
    agent: Agent, batch: Batch, part: Tensor, legacy: float, config: TrainConfig
) -> Tensor:
    """Return the norm of the gradient of the risk term alone, over all parameters.

    The term is minus the mean of ratio times the risk part of the advantage, before the first step,
    where every ratio is 1 and nothing is clipped; or `losses.legacy_cvar`, if that has a weight. It
    is differentiated by itself: the norm of all gradients together says nothing about it.

    Gradients of micro-batches of `ppo.microbatch_size` sequences are added, as in the epochs: the
    value is that of the whole minibatch, and no more activations are held than there.

    Args:
        agent: with the weights of the rollout.
        batch: a minibatch of sequences.
        part: of the normalised advantage that is due to risk, [L, n]; of that of every action,
            [L, n, K].
        legacy: weight of `losses.legacy_cvar`.
        config: of the run.
    """
    count = batch.weight.shape[1]
    divisor = batch.weight.sum().clamp(min=torch.finfo(batch.weight.dtype).tiny)
    total: dict[int, Tensor] = {}
    for chosen in torch.arange(count, device=part.device).split(
        config.ppo.microbatch_size or count
    ):
        with torch.enable_grad():
            term = _weighted_term(
                agent, select(batch, chosen), part.index_select(1, chosen), legacy, config
            )
            grads = torch.autograd.grad(term / divisor, list(agent.parameters()), allow_unused=True)
        for place, grad in enumerate(grads):
            if grad is not None:
                total[place] = total[place] + grad if place in total else grad
    norms = torch.stack([grad.double().square().sum() for grad in total.values()])
    return norms.sum().sqrt()


def _weighted_term(
    agent: Agent, batch: Batch, part: Tensor, legacy: float, config: TrainConfig
) -> Tensor:
    """Return the sum of the term over the rows of some sequences, each with its weight."""
    network = agent.network
    output = network(batch.observation, batch.memory, batch.reset)
    if legacy:
        chosen = config.risk
        term = -legacy * legacy_cvar(
            agent, output.critic, alpha=chosen.cvar_alpha, estimator=chosen.cvar_estimator
        )
    else:
        parameters = network.head.masked(output.actor, batch.mask)
        if part.ndim > batch.weight.ndim:
            every = grid_log_prob(network.head, parameters, network.grid)
            term = -(every.exp() * part).sum(-1)
            return torch.where(batch.weight > 0.0, term * batch.weight, 0.0).sum()
        log_prob = network.head.log_prob(parameters, batch.raw_action)
        term = -(log_prob - batch.log_prob).exp() * part
    return torch.where(batch.weight > 0.0, term * batch.weight, 0.0).sum()


def with_gradient(
    agent: Agent,
    report: RiskReport | None,
    data: Batch,
    rollout: Rollout,
    moments: RunningMoments | None,
    config: TrainConfig,
) -> RiskReport | None:
    """Return a report with the gradient norm of the risk term on a first minibatch, if configured.

    Args:
        agent: before the epochs.
        report: of the control; None without one.
        data: all sequences.
        rollout: with the weights.
        moments: that advantages were normalised with.
        config: of the run.
    """
    if report is None or not config.risk.logs_gradient:
        return report
    ppo = config.ppo
    if report.risk_options is None:
        std: Tensor | float = 1.0
        if ppo.normalize_advantage:
            std = deviation(report.advantage, rollout.weight, config, moments)
        whole = report.risk * report.factor / std
    else:
        whole = report.risk_options
    part = cut_rows(whole, ppo.sequence_length or ppo.n_steps)
    chosen = torch.arange(ppo.batch_size, device=part.device)
    norm = risk_gradient_norm(
        agent,
        select(data, chosen),
        part.index_select(1, chosen).to(data.advantage.dtype),
        report.legacy,
        config,
    )
    return replace(report, gradient_norm=norm)
