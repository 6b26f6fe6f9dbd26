"""Advantage estimates of a rollout: decoded values, GAE, critic targets, normalisation."""

from dataclasses import dataclass

import torch
from torch import Tensor

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.update import critic_targets
from stormsail.algorithms.update.rollout import Rollout
from stormsail.core.errors import DataError
from stormsail.functional import advantage, policy, returns, statistics
from stormsail.modules.agent import Agent


@dataclass(frozen=True, eq=False)
class Estimates:
    """Values, advantages and critic targets, [T, B] each unless said otherwise. Reward units."""

    value: Tensor
    """V(s_t), the one scalar value of all critics."""
    raw_advantage: Tensor
    """Generalised advantage estimate."""
    returns: Tensor
    """R = A + V."""
    target: Tensor
    """Critic target, [T, B, M], not yet encoded."""
    outcomes: Tensor
    """Sampled returns of that target for the return statistics, [T, B, M]."""
    explained_variance: Tensor
    """Of R by V, before the update; a scalar."""


def decoded_value(agent: Agent, predicted: Tensor, config: TrainConfig) -> Tensor:
    """Return the scalar value in reward units, within `value_clip.value_clip_limit`."""
    value = agent.return_scale.decode(agent.network.critic.value(predicted))
    limit = config.value_clip.value_clip_limit
    return value if limit is None else value.clamp(-limit, limit)


@torch.no_grad()
def estimate(agent: Agent, rollout: Rollout, config: TrainConfig) -> Estimates:
    """Return values, advantages, returns and critic targets of a rollout.

    Raises:
        DataError: if a reward or a value is not finite.
    """
    value = decoded_value(agent, rollout.predicted, config)
    bootstrap = decoded_value(agent, rollout.next_predicted, config)
    _check_finite(reward=rollout.reward, value=value, bootstrap=bootstrap)
    raw = returns.gae(
        rollout.reward,
        value,
        bootstrap,
        rollout.terminated,
        rollout.truncated,
        gamma=config.ppo.gamma,
        lam=config.ppo.gae_lambda,
    )
    total = raw + value
    target = critic_targets.targets(agent, rollout, total, config)
    return Estimates(
        value=value,
        raw_advantage=raw,
        returns=total,
        target=target,
        outcomes=critic_targets.outcomes(agent, rollout, target, config),
        explained_variance=statistics.explained_variance(total, value, weight=rollout.weight),
    )


def normalised(
    raw: Tensor,
    estimates: Estimates,
    rollout: Rollout,
    config: TrainConfig,
    previous: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """Return the normalised advantages, computed over rows with weight only.

    `previous_stats` needs an earlier rollout; the first one follows the rule of `floor`.
    """
    if not config.ppo.normalize_advantage:
        return raw
    mode = config.ppo.advantage_mode
    if mode == "previous_stats" and previous is None:
        mode = "floor"
    scaled = advantage.normalise(
        raw,
        weight=rollout.weight,
        magnitude=torch.maximum(estimates.returns.abs(), estimates.value.abs()),
        mode=mode,
        floor=config.ppo.adv_std_floor,
        per_env=config.ppo.normalize_advantage_per_env,
        previous=previous,
    )
    bound = config.ppo.adv_clip
    return scaled if bound is None else scaled.clamp(-bound, bound)


def kept_statistics(
    raw: Tensor,
    weight: Tensor,
    config: TrainConfig,
    previous: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor] | None:
    """Return mean and deviation that `previous_stats` falls back on in the next rollout.

    A rollout without spread keeps those of the rollout before.
    """
    if config.ppo.advantage_mode != "previous_stats":
        return None
    mass = weight.flatten().double()
    seen = statistics.moments(raw.flatten(), weight=mass)
    count = mass.sum().square() / mass.square().sum()
    std = (statistics.variance(seen) * count / (count - 1.0)).sqrt()
    return (seen.mean, std) if bool(std > config.ppo.adv_std_floor) else previous


def _check_finite(**arrays: Tensor) -> None:
    counts = {name: policy.count_nonfinite(array) for name, array in arrays.items()}
    bad = {name: int(count.nan + count.inf) for name, count in counts.items()}
    if any(bad.values()):
        counted = ", ".join(f"{count} in `{name}`" for name, count in bad.items() if count)
        raise DataError(
            "data-defects",
            wrong="rewards and values of a rollout must be finite",
            found=f"{counted} that are not",
            remedy="Look at the data and the task first; a value that is not finite comes from "
            "the network.",
        )
