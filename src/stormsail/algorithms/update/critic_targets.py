"""Critic targets and critic losses, for each kind of critic.

Targets are computed in reward units, bootstrapped from the predicted return distribution of the
next state, and encoded with the return scale that the heads are trained in.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.algorithms.config import TargetConfig, TrainConfig
from stormsail.algorithms.update.rollout import Rollout
from stormsail.core.errors import InvariantError
from stormsail.core.machine_code.graph_compiler import is_traced
from stormsail.functional import categorical, quantile, returns, value_clip
from stormsail.functional.kernels.devices import may_launch
from stormsail.functional.kernels.losses import quantile_pairs, traced_huber
from stormsail.modules.agent import Agent


def next_distribution(agent: Agent, rollout: Rollout) -> Tensor:
    """Return the predicted return distribution of the next state of each step, [T, B, W].

    Quantiles are in reward units; probabilities belong to `agent.atoms`.
    """
    joint = agent.network.critic.distribution(rollout.next_predicted)
    return joint if agent.spec.critic.kind == "categorical" else agent.return_scale.decode(joint)


def targets(agent: Agent, rollout: Rollout, scalar_return: Tensor, config: TrainConfig) -> Tensor:
    """Return the critic target of each row.

    Args:
        agent: predicts the return distribution of the next states.
        rollout: the transitions.
        scalar_return: the lambda return R of each row in reward units, [T, B].
        config: which target.

    Returns:
        Quantile atoms in reward units [T, B, M], probabilities of `agent.atoms` [T, B, K], or
        the scalar return [T, B, 1].
    """
    kind = agent.spec.critic.kind
    if config.target.kind == "lambda_return":
        if kind == "categorical":
            return categorical.project(scalar_return, agent.atoms.to(scalar_return.dtype))
        return scalar_return[..., None]
    bootstrap = next_distribution(agent, rollout)
    flags = (rollout.terminated, rollout.truncated)
    gamma, steps = config.ppo.gamma, _steps(config.target, rollout)
    if kind == "categorical":
        atoms = agent.atoms.to(bootstrap.dtype)
        return returns.categorical_nstep_targets(
            rollout.reward, bootstrap, *flags, atoms, gamma=gamma, steps=steps
        )
    if config.target.kind == "lambda_mixture":
        lam = config.target.mixture_lambda
        return returns.quantile_lambda_targets(
            rollout.reward, bootstrap, *flags, gamma=gamma, lam=lam
        )
    return returns.quantile_nstep_targets(
        rollout.reward, bootstrap, *flags, gamma=gamma, steps=steps
    )


def outcomes(agent: Agent, rollout: Rollout, target: Tensor, config: TrainConfig) -> Tensor:
    """Return the sampled returns of a target in reward units, [T, B, M], for the return statistics.

    For a quantile critic these are the target's own atoms. The target of a categorical critic
    cannot be used: nothing of it lies outside the support that is to be chosen, and an untrained
    distribution is as wide as its support, which would widen with it for ever. There it is the
    target's sum of rewards plus the discounted mean of the bootstrap distribution.
    """
    if agent.spec.critic.kind != "categorical":
        return target
    atoms = agent.atoms.to(target.dtype)
    if config.target.kind == "lambda_return":
        return categorical.distribution_mean(target, atoms)[..., None]
    mean = categorical.distribution_mean(next_distribution(agent, rollout), atoms)[..., None]
    flags = (rollout.terminated, rollout.truncated)
    gamma, steps = config.ppo.gamma, _steps(config.target, rollout)
    return returns.quantile_nstep_targets(rollout.reward, mean, *flags, gamma=gamma, steps=steps)


def _steps(config: TargetConfig, rollout: Rollout) -> int:
    rows = rollout.reward.shape[0]
    return {"td": 1, "mc": rows, "nstep": min(config.steps, rows)}.get(config.kind, rows)


def atom_weights(agent: Agent, target: Tensor) -> Tensor | None:
    """Return the mass of each atom of a quantile target, [M]; None where all have the same.

    It is that of the quantiles which the target is bootstrapped from; a scalar return is one atom.
    """
    return None if target.shape[-1] == 1 else agent.network.critic.weights()


def encoded(agent: Agent, target: Tensor, config: TrainConfig) -> Tensor:
    """Return a target on the return scale of the heads; probabilities stay as they are.

    A scalar target is limited to `returns.ret_clip`. A distributional one is not: the cut would
    fall on the tail. Nor is a target in reward units, where that many deviations mean nothing.
    """
    if agent.spec.critic.kind == "categorical":
        return target
    normal = agent.return_scale.encode(target)
    if config.target.kind == "lambda_return" and config.returns.normalize_returns != "off":
        return normal.clamp(-config.returns.ret_clip, config.returns.ret_clip)
    return normal


def losses(agent: Agent, predicted: Tensor, target: Tensor) -> Tensor:
    """Return the loss of each critic for each row, [*b, C]."""
    critic = agent.spec.critic
    wide = target[..., None, :].expand(*predicted.shape[:-1], target.shape[-1])
    if critic.kind == "quantile":
        return quantile.huber_loss(
            predicted,
            wide,
            _levels(agent, predicted),
            kappa=critic.huber_kappa,
            target_weight=atom_weights(agent, target),
        )
    if critic.kind == "categorical":
        normaliser = categorical.cross_entropy_normaliser(critic.num_atoms)
        return categorical.cross_entropy(predicted, wide) / normaliser
    return 0.5 * (predicted - wide).square().mean(-1)


def _levels(agent: Agent, predicted: Tensor) -> Tensor:
    """Return the levels of the quantiles in the type of what is predicted, [N]."""
    return agent.network.critic.levels().to(predicted.dtype)


class Seen(NamedTuple):
    """What the loss of quantile critics says of them on the way."""

    linear: Tensor
    """Share of pairs in the linear part of the loss, [*b]."""
    crossing: Tensor
    """Share of neighbouring quantiles in the wrong order, [*b]."""
    means: Tensor
    """Of each critic's distribution, normalised, [*b, C]."""


def seen(agent: Agent, predicted: Tensor, target: Tensor) -> Seen:
    """Return the same where it is no by-product of a loss; shares of other critics are 0.

    The share of linear pairs is the mean over critics: each has pairs of its own with the target
    that they share.
    """
    means = agent.network.critic.means(predicted)
    if agent.spec.critic.kind != "quantile":
        zero = torch.zeros_like(predicted[..., 0, 0])
        return Seen(zero, zero, means)
    linear = quantile.huber_active(
        predicted.flatten(-2),  # all critics have as many quantiles
        target,
        kappa=agent.spec.critic.huber_kappa,
        target_weight=atom_weights(agent, target),
    )
    return Seen(linear, quantile.crossing_fraction(predicted).mean(-1), means)


def losses_and_seen(agent: Agent, predicted: Tensor, target: Tensor) -> tuple[Tensor, Seen | None]:
    """Return `losses`, and what they say on the way.

    That is None where it is no by-product of the loss: of other critics, and of calls on a CPU.
    """
    critic, launches = agent.spec.critic, may_launch(predicted, target)
    is_by_product = launches or (is_traced() and predicted.device.type == "cpu")
    if critic.kind != "quantile" or not is_by_product:
        return losses(agent, predicted, target), None
    critics, wide = agent.network.critic, target[..., None, :]
    wide = wide.expand(*predicted.shape[:-1], target.shape[-1])
    shared = (wide, _levels(agent, predicted), critic.huber_kappa, atom_weights(agent, target))
    if not launches:
        by_critic, linear = traced_huber.huber_loss_and_active(predicted, *shared)
        given = predicted.detach()
        crossing = quantile.crossing_fraction(given).mean(-1)
        return by_critic.to(given.dtype), Seen(
            linear.mean(-1).to(given.dtype), crossing, critics.means(given)
        )
    level_mass = critics.weights()
    by_critic, seen = quantile_pairs.huber_loss_and_seen(
        predicted, *shared, None if level_mass is None else level_mass.to(predicted.dtype)
    )
    active, crossed, means = (part.to(predicted.dtype) for part in seen)
    return by_critic.to(predicted.dtype), Seen(active.mean(-1), crossed.mean(-1), means)


def clipped_losses(
    agent: Agent, predicted: Tensor, old: Tensor, target: Tensor, config: TrainConfig
) -> Tensor:
    """Return the loss of predictions clipped to the old ones of the same critic, [*b, C].

    Raises:
        InvariantError: if clipping is off.
    """
    clip = config.value_clip
    if clip.clip_range_vf is None:
        raise InvariantError(
            "missing-argument",
            wrong="`value_clip.clip_range_vf` must be set where predictions are clipped",
            found="None",
            remedy="Call `losses` instead.",
        )
    std = agent.return_scale.std
    epsilon: Tensor | float = clip.clip_range_vf
    if clip.vf_clip_units == "raw":
        epsilon = (epsilon / std).to(predicted.dtype)
    mode, factor = clip.distributional_vf_clip_mode, clip.distributional_vf_clip_variance_factor
    if agent.spec.critic.kind == "categorical":
        atoms = agent.network.critic.atoms
        held = value_clip.clip_distribution(
            predicted.softmax(-1),
            old.softmax(-1),
            atoms,
            epsilon=epsilon,
            mode=mode,
            variance_factor=factor,
        )
        tiny = torch.finfo(held.dtype).tiny
        return losses(agent, held.clamp(min=tiny).log(), target)
    if agent.spec.critic.kind == "scalar":
        mode = "mean_only"
    held = value_clip.clip_quantiles(
        predicted,
        old,
        epsilon=epsilon,
        mode=mode,
        variance_factor=factor,
        weight=agent.network.critic.weights(),
    )
    if clip.value_clip_limit is not None:
        held = value_clip.limit_encoded(
            held, limit=clip.value_clip_limit, mean=agent.return_scale.mean, std=std
        )
    return losses(agent, held, target)
