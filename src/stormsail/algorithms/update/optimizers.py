"""Optimizer, variance gradient scaler and gradient pipeline of a configuration."""

from typing import Any

import torch
from torch.optim import AdamW, Optimizer

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.learning import OptimizerConfig
from stormsail.modules.agent import Agent
from stormsail.optim import UPGD, UPGDW, AdaptiveUPGD
from stormsail.optim.pipeline import GradientPipeline
from stormsail.optim.vgs.scaler import VarianceGradientScaler

DECAYS = {"AdaptiveUPGD": 0.0, "UPGD": 0.0, "UPGDW": 0.01, "AdamW": 0.01}
"""Weight decay of each optimizer where none is set. The two whose name ends in W are chosen for
their decay and have that of torch's AdamW; without one they would be another optimizer's copy."""


def weight_decay(chosen: OptimizerConfig) -> float:
    """Return the decay that an optimizer gets."""
    return DECAYS[chosen.optimizer_class] if chosen.weight_decay is None else chosen.weight_decay


RATE_FACTOR = "rate_factor"
"""Key of a parameter group whose weights take a multiple of the scheduled learning rate; a group
without it takes that rate itself."""


def parameter_groups(agent: Agent, config: TrainConfig) -> list[dict[str, Any]]:
    """Return the weights of an agent, those of its critics apart where they have another rate.

    The gradient of a quantile is bounded by its level, whatever the distance, so how far a tail
    can travel is the number of steps times the rate of the heads. Heads with steps of their own
    (`head_steps`) stay as they are during the epochs, which train what is in front of them.
    """
    factor = config.critic.learning_rate_factor or 1.0
    if config.critic.head_steps > 0:
        return _with_resting_heads(agent, config, factor)
    if factor == 1.0:
        return [{"params": list(agent.parameters())}]
    critics = agent.network.critic_parameters()
    own = {id(parameter) for parameter in critics}
    others = [parameter for parameter in agent.parameters() if id(parameter) not in own]
    rate = factor * config.ppo.learning_rate
    return [{"params": others}, {"params": critics, "lr": rate, RATE_FACTOR: factor}]


def _with_resting_heads(agent: Agent, config: TrainConfig, factor: float) -> list[dict[str, Any]]:
    """Return the weights with the critics' heads as a group that takes no steps, which is last."""
    network, rate = agent.network, config.ppo.learning_rate
    heads = list(network.critic.parameters())
    own = {id(parameter) for parameter in heads}
    trunk = [each for each in network.critic_parameters() if id(each) not in own]
    own |= {id(parameter) for parameter in trunk}
    others = [parameter for parameter in agent.parameters() if id(parameter) not in own]
    groups: list[dict[str, Any]] = [{"params": others}]
    if trunk:
        groups.append({"params": trunk, "lr": factor * rate, RATE_FACTOR: factor})
    return [*groups, {"params": heads, "lr": 0.0, RATE_FACTOR: 0.0}]


def build_optimizer(
    agent: Agent, config: TrainConfig, generator: torch.Generator, *, capturable: bool = False
) -> Optimizer:
    """Return the optimizer of all weights.

    Args:
        agent: whose weights.
        config: of the run.
        generator: draws its noise.
        capturable: whether a CUDA graph may capture its steps.
    """
    chosen = config.optimizer
    parameters = parameter_groups(agent, config)
    adam = {"betas": (chosen.beta1, chosen.beta2), "eps": chosen.eps}
    plain = {"lr": config.ppo.learning_rate, "weight_decay": weight_decay(chosen)}
    if chosen.optimizer_class == "AdamW":
        return AdamW(parameters, **plain, **adam, capturable=capturable)  # type: ignore[arg-type]
    utility = {
        "beta_utility": chosen.beta_utility,
        "sigma": chosen.sigma,
        "noise_scale": chosen.noise_scale,
        "utility_norm": chosen.utility_norm,
        "lr_compensation": chosen.lr_compensation,
        "generator": generator,
        "capturable": capturable,
    }
    if chosen.optimizer_class == "UPGD":
        return UPGD(parameters, **plain, **utility)  # type: ignore[arg-type]
    kind = AdaptiveUPGD if chosen.optimizer_class == "AdaptiveUPGD" else UPGDW
    return kind(parameters, **plain, **adam, **utility)  # type: ignore[arg-type]


def build_pipeline(agent: Agent, optimizer: Optimizer, config: TrainConfig) -> GradientPipeline:
    """Return the pipeline from gradients to a step: scaler, clip, optimizer."""
    vgs = config.vgs
    scaler = None
    if vgs.enabled:
        scaler = VarianceGradientScaler(
            agent.named_parameters(),
            optimizer=optimizer,
            beta=vgs.beta,
            alpha=vgs.alpha,
            eps_rel=vgs.eps_rel,
            warmup_steps=vgs.warmup_steps,
            min_scaling_factor=vgs.min_scaling_factor,
            variance_cap=vgs.variance_cap,
            statistic=vgs.statistic,
            reference=vgs.reference,
            scope=vgs.scope,
        )
    return GradientPipeline(
        agent.named_parameters(),
        optimizer,
        scaler=scaler,
        max_grad_norm=config.ppo.max_grad_norm,
        compiled=config.optimizer.compiled,
    )
