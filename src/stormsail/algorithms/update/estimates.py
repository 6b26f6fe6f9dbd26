"""Advantage estimates of a rollout: decoded values, GAE, critic targets, normalisation."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.update import critic_targets
from stormsail.algorithms.update.rollout import Rollout
from stormsail.core.errors import DataError
from stormsail.functional import advantage, policy, returns, statistics
from stormsail.functional.advantage import RunningMoments, earlier_moments
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


def decoded_values(agent: Agent, rollout: Rollout, config: TrainConfig) -> tuple[Tensor, Tensor]:
    """Return the scalar values of all rows and of the states that they led to."""
    value = decoded_value(agent, rollout.predicted, config)
    bootstrap = decoded_value(agent, rollout.next_predicted, config)
    return value, bootstrap


@torch.no_grad()
def estimate(agent: Agent, rollout: Rollout, config: TrainConfig) -> Estimates:
    """Return values, advantages, returns and critic targets of a rollout.

    Raises:
        DataError: if a reward or a value is not finite.
    """
    check_inputs(agent, rollout, config)
    return estimated(agent, rollout, config)


@torch.no_grad()
def estimated(agent: Agent, rollout: Rollout, config: TrainConfig) -> Estimates:
    """Return what `estimate` does, without a look at what is finite, so without a host sync."""
    value, bootstrap = decoded_values(agent, rollout, config)
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


def next_moments(
    raw: Tensor, weight: Tensor, config: TrainConfig, previous: RunningMoments | None
) -> RunningMoments | None:
    """Return the moments of advantages that this rollout leaves to the next; None without any.

    Running ones for the `slow` scale; those of the last rollout with a spread for `previous_stats`.
    """
    ppo = config.ppo
    if ppo.normalize_advantage and ppo.advantage_scale == "slow":
        return advantage.running_moments(
            raw, previous, weight=weight, beta=ppo.advantage_scale_beta
        )
    if ppo.advantage_mode != "previous_stats":
        return None
    own = advantage.running_moments(raw, None, weight=weight, beta=0.0)
    return own if bool(own.variance.sqrt() > ppo.adv_std_floor) else previous


def normalised(
    raw: Tensor,
    estimates: Estimates,
    rollout: Rollout,
    config: TrainConfig,
    moments: RunningMoments | None,
) -> Tensor:
    """Return the normalised advantages, computed over rows with weight only.

    Args:
        raw: advantages in reward units, [T, B].
        estimates: of the rollout; returns and values give the resolution of `raw`.
        rollout: with the weights.
        config: of the run.
        moments: what the `slow` scale divides by, and `previous_stats` falls back on; None where
            there was no earlier rollout, which for `previous_stats` is the rule of `floor`.
    """
    ppo = config.ppo
    if not ppo.normalize_advantage:
        return raw
    magnitude = torch.maximum(estimates.returns.abs(), estimates.value.abs())
    weight, floor = rollout.weight, ppo.adv_std_floor
    if ppo.advantage_scale == "slow" and moments is not None:
        scaled = advantage.normalise_by(
            raw, moments, weight=weight, magnitude=magnitude, floor=floor
        )
    else:
        no_earlier = ppo.advantage_mode == "previous_stats" and moments is None
        scaled = advantage.normalise(
            raw,
            weight=weight,
            magnitude=magnitude,
            mode="floor" if no_earlier else ppo.advantage_mode,
            floor=floor,
            per_env=ppo.normalize_advantage_per_env,
            previous=None if moments is None else (moments.mean, moments.variance.sqrt()),
        )
    return scaled if ppo.adv_clip is None else scaled.clamp(-ppo.adv_clip, ppo.adv_clip)


def deviation(
    raw: Tensor,
    weight: Tensor,
    config: TrainConfig,
    moments: RunningMoments | None,
    *,
    own: Tensor | None = None,
) -> Tensor:
    """Return the standard deviation that advantages are divided by, before any floor.

    Args:
        raw: advantages.
        weight: of each.
        config: of the run.
        moments: of earlier rollouts, if any.
        own: deviation of these, where it is known.
    """
    if config.ppo.advantage_scale == "slow" and moments is not None:
        return moments.variance.sqrt()
    return statistics.weighted_std(raw, weight) if own is None else own


def check_inputs(agent: Agent, rollout: Rollout, config: TrainConfig) -> None:
    """Check what estimates are made of.

    Raises:
        DataError: if a reward or a value is not finite.
    """
    value, bootstrap = decoded_values(agent, rollout, config)
    _check_finite(reward=rollout.reward, value=value, bootstrap=bootstrap)


class Normalised(NamedTuple):
    """Advantages, and the moments that go with them."""

    advantage: Tensor
    """Normalised."""
    used: RunningMoments | None
    """Moments that they were normalised with; None where they are their own."""
    after: RunningMoments | None
    """Moments that this rollout leaves to the next."""


class Raw(NamedTuple):
    """What advantages are normalised from."""

    mixed: Tensor
    """In reward units, [T, B]."""
    estimates: Estimates
    rollout: Rollout
    before: RunningMoments | None
    """Moments of earlier rollouts."""
    sound: Tensor
    """Whether the rollout is finite, a flag; where it is not, it leaves those to the next."""


def follow_moments(
    mixed: Tensor, weight: Tensor, config: TrainConfig, before: RunningMoments | None
) -> tuple[RunningMoments | None, RunningMoments | None]:
    """Return the moments that a rollout is normalised with, and those that it leaves to the next.

    The first are those before it: a loss must not shrink itself.
    """
    after = next_moments(mixed, weight, config, before)
    if after is None or config.ppo.advantage_scale != "slow":
        return before, after
    return earlier_moments(before, after, floor=config.ppo.adv_std_floor), after


def _check_finite(**arrays: Tensor) -> None:
    counts = [policy.count_nonfinite(array).total for array in arrays.values()]
    bad = dict(zip(arrays, torch.stack(counts).tolist(), strict=True))
    if any(bad.values()):
        counted = ", ".join(f"{count} in `{name}`" for name, count in bad.items() if count)
        raise DataError(
            "data-defects",
            wrong="rewards and values of a rollout must be finite",
            found=f"{counted} that are not",
            remedy="Look at the data and the task first; a value that is not finite comes from "
            "the network.",
        )


def normalised_anew(raw: Raw, config: TrainConfig) -> Normalised:
    """Return normalised advantages and moments, the latter those of before where nothing counts."""
    mixed, estimates, rollout, before, sound = raw
    used, after = follow_moments(mixed, rollout.weight, config, before)
    advantage = normalised(mixed, estimates, rollout, config, used)
    if before is not None and after is not None:
        kept = zip(after, before, strict=True)
        after = RunningMoments(*(torch.where(sound, new, old) for new, old in kept))
    return Normalised(advantage, used, after)
