"""Metrics of a rollout: episodes, rewards, advantages, values, memory, observations."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.algorithms.ppo import Ppo
from stormsail.algorithms.telemetry.values import Values, largest, mean, mean_and_std, share
from stormsail.algorithms.update.critic_targets import atom_weights
from stormsail.algorithms.update.estimates import Estimates, deviation
from stormsail.algorithms.update.graphs import waiting_allowed
from stormsail.algorithms.update.rollout import REPORTED, Rollout
from stormsail.core.task import symbols
from stormsail.functional import advantage, categorical, quantile, risk, statistics
from stormsail.functional.advantage import RunningMoments
from stormsail.functional.statistics import (
    Moments,
    Weights,
    percentile,
    percentiles,
)
from stormsail.modules.agent import Agent

SATURATED = 0.95
"""Size of a hidden unit beyond which its gradient is nearly gone."""

FEW_GROUPS = 16
"""Groups whose sums are one product on a CUDA device."""


class Seen(NamedTuple):
    """Tensors of an update that metrics are computed from on the device: fields of `Update`."""

    rollout: Rollout
    estimates: Estimates
    mixed: Tensor
    advantage: Tensor
    moments: RunningMoments | None
    target: Tensor
    predicted: Tensor
    scale: tuple[Tensor, Tensor]
    observation_before: Moments
    memory: Tensor
    """State of the memory at the rollout's end."""
    risk: Tensor | None
    """Risk advantage."""


def episodes(rollout: Rollout) -> Values:
    """Return statistics of the finished episodes. An episode with a return above 0 is won."""
    ended = rollout.ended
    total = rollout.return_so_far.double() + rollout.reward.double()
    won = ended & (total > 0.0)
    flags = ended.double()
    average, spread = mean_and_std(total, flags)
    fast, slow = percentiles(rollout.length.double(), won, levels=(0.5, 0.9)).unbind()
    low, middle = percentiles(total, ended, levels=(0.05, 0.5)).unbind()
    return {
        "rollout/episodes": ended.sum(),
        "rollout/wins": won.sum(),
        "rollout/win_rate": share(won.sum(), ended.sum()),
        "rollout/steps_to_win_mean": mean(rollout.length, won.double()),
        "rollout/steps_to_win_p50": fast,
        "rollout/steps_to_win_p90": slow,
        "rollout/episode_return_mean": average,
        "rollout/episode_return_std": spread,
        "rollout/episode_return_min": -largest(-total, ended),
        "rollout/episode_return_p05": low,
        "rollout/episode_return_p50": middle,
        "rollout/episode_return_max": largest(total, ended),
        "rollout/episode_length_mean": mean(rollout.length, flags),
        "rollout/terminated": rollout.terminated.sum(),
        "rollout/truncated": rollout.truncated.sum(),
    }


def rewards(ppo: Ppo, rollout: Rollout, weights: Weights) -> Values:
    """Return rewards, costs and the entropy of the policy during the rollout."""
    weight = rollout.weight
    closed = ppo.agent.network.head.entropy(rollout.parameters)
    average, spread = mean_and_std(rollout.reward, weight)
    values: Values = {
        "rollout/samples": weight.double().sum(),
        "rollout/reward_mean": average,
        "rollout/reward_std": spread,
        "rollout/policy_entropy": -mean(rollout.log_prob, weights),
        "train/policy_entropy_raw": mean(closed, weights),
    }
    if "reward_raw_fraction" in rollout.info:
        raw = rollout.info["reward_raw_fraction"]
        values["rollout/raw_reward_mean_in_fraction"] = mean(raw, weights)
    if "reward_costs_fraction" in rollout.info:
        values |= costs(rollout.info["reward_costs_fraction"], weight)
    return values


def reported(rollout: Rollout) -> Values:
    """Return the means of what a task measured itself, over live rows that have a value."""
    values: Values = {}
    for name, column in rollout.info.items():
        if name.startswith(REPORTED):
            weight = torch.where(column.isfinite(), rollout.weight, 0.0)
            values[f"rollout/{name}"] = mean(torch.where(weight > 0.0, column, 0.0), weight)
    return values


def costs(fraction: Tensor, weight: Tensor) -> Values:
    """Return the costs of the steps with weight; non-finite ones are only counted."""
    used = weight > 0.0
    known = used & fraction.isfinite()
    return {
        "rollout/reward_costs_fraction_mean": mean(fraction, torch.where(known, weight, 0.0)),
        "rollout/reward_costs_fraction_p95": percentile(fraction, known, level=0.95),
        "rollout/reward_costs_fraction_max": largest(fraction, known),
        "rollout/reward_costs_nonfinite_count": (used & ~fraction.isfinite()).sum(),
    }


def advantages(ppo: Ppo, seen: Seen) -> Values:
    """Return the advantages before and after they were normalised."""
    raw, normal, weight = seen.mixed, seen.advantage, seen.rollout.weight
    both = (seen.estimates.returns, seen.estimates.value)
    sizes = [largest(part.abs(), weight > 0.0) for part in both]
    resolution = advantage.RESOLUTION * torch.stack(sizes).max()
    average, own = mean_and_std(raw, weight)
    normal_mean, normal_std = mean_and_std(normal, weight)
    floor = resolution.clamp(min=ppo.config.ppo.adv_std_floor)
    divisor = deviation(raw, weight, ppo.config, seen.moments, own=own)
    return {
        "train/advantages_mean_raw": average,
        "train/advantages_std_raw": own,
        "train/advantages_std_clamped": torch.maximum(own, floor),
        "train/advantage_scale": torch.maximum(divisor, floor),
        "train/advantages_norm_max_abs": largest(normal.abs(), weight > 0.0),
        "train/advantages_norm_mean": normal_mean,
        "train/advantages_norm_std": normal_std,
    }


def explained(seen: Seen, weights: Weights) -> Values:
    """Return how well the values predicted the returns, before the update."""
    target, value = seen.estimates.returns, seen.estimates.value
    weight = seen.rollout.weight
    whole = seen.estimates.explained_variance
    return {
        "train/explained_variance": whole,
        "train/ev/global": whole,
        "train/ev/corr": correlation(target, value, weight, weights),
        "train/ev/bias": mean(value.double() - target.double(), weights),
        "train/ev/n_samples": (weight > 0.0).sum(),
    }


def is_counted(ppo: Ppo, rollout: Rollout) -> bool:
    """Return whether the number of symbols in a rollout is known without asking the device."""
    return "symbol" not in rollout.info or symbols(ppo.task) is not None


def grouped(ppo: Ppo, rollout: Rollout, estimates: Estimates) -> Values:
    """Return how well the values predicted the returns of each symbol; of all without symbols."""
    symbol, names = rollout.info.get("symbol"), symbols(ppo.task)
    if symbol is None:
        whole = estimates.explained_variance
        return {"train/ev/mean_grouped": whole, "train/ev/median_grouped": whole}
    count = None if names is None else len(names)
    grouped = grouped_explained_variance(
        estimates.returns, estimates.value, rollout.weight, symbol, count=count
    )
    known = ~grouped.isnan()
    return {
        "train/ev/mean_grouped": mean(torch.where(known, grouped, 0.0), known.double()),
        "train/ev/median_grouped": percentile(grouped, known, level=0.5),
    }


def correlation(
    first: Tensor, second: Tensor, weight: Tensor, weights: Weights | None = None
) -> Tensor:
    """Return the weighted correlation in float64; NaN where either has no spread.

    By the rule of `statistics.explained_variance`: what rounding alone may make is no spread, and
    a constant prediction correlates with nothing.
    """
    weights = Weights.of(weight) if weights is None else weights
    deviations = [x.double() - mean(x, weights) for x in (first, second)]
    variances = [mean(x.square(), weights) for x in deviations]
    sizes = [torch.where(weight > 0.0, x.abs(), 0.0).amax() for x in (first, second)]
    least = [statistics.least_variance(size) for size in sizes]
    spread = (variances[0] > least[0]) & (variances[1] > least[1])
    together = mean(deviations[0] * deviations[1], weights)
    # The root of each, not of the product, which may underflow.
    return torch.where(spread, together / (variances[0].sqrt() * variances[1].sqrt()), torch.nan)


def grouped_explained_variance(
    target: Tensor, value: Tensor, weight: Tensor, group: Tensor, *, count: int | None = None
) -> Tensor:
    """Return the explained variance within each group, [G]; NaN where it means nothing.

    By the rule of `statistics.explained_variance`: fewer than two entries, or no spread.

    Args:
        target: returns.
        value: what was predicted.
        weight: of each entry.
        group: label of each, int64; with a count 0 to G - 1.
        count: number of groups G; None takes the labels that there are, and waits for them.
    """
    place = group.flatten()
    if count is None:
        with waiting_allowed():
            labels, place = place.unique(return_inverse=True)
        count = len(labels)
    used = weight.flatten() > 0.0
    mass = torch.where(used, weight.flatten(), 0.0).double()

    few = mass.is_cuda and count <= FEW_GROUPS
    groups = torch.arange(count if few else 0, device=place.device)
    member = place == groups[:, None]
    shares = member.double()

    def per_group(x: Tensor) -> Tensor:
        if few:  # a million additions to a handful of places wait for each other
            sums: Tensor = shares @ x
            return sums
        return mass.new_zeros(count).index_add_(0, place, x)

    def largest_of(x: Tensor) -> Tensor:
        if few:
            return torch.where(member, x, 0.0).amax(1)
        return x.new_zeros(count).scatter_reduce_(0, place, x, "amax")

    total = per_group(mass)
    total = torch.where(total > 0.0, total, 1.0)

    def variance(x: Tensor) -> Tensor:
        known = torch.where(used, x.flatten().double(), 0.0)
        centred = known - (per_group(mass * known) / total)[place]
        return per_group(mass * centred.square()) / total

    sizes = torch.where(used, target.flatten().abs(), 0.0)
    wanted, missed = variance(target), variance(target.double() - value.double())
    has_spread = wanted > statistics.least_variance(largest_of(sizes))
    meaningful = (per_group(used.double()) > 1.0) & has_spread
    return torch.where(meaningful, 1.0 - missed / wanted, torch.nan)


def values(ppo: Ppo, seen: Seen, weights: Weights) -> Values:
    """Return statistics of the critics' predictions, and how the targets fit their range."""
    agent = ppo.agent
    limit = ppo.config.value_clip.value_clip_limit
    at_limit = seen.estimates.value.abs() >= (math.inf if limit is None else limit)
    scale = agent.return_scale
    gaps = [
        (now - then).abs() for now, then in zip((scale.mean, scale.std), seen.scale, strict=True)
    ]
    return {
        "train/ret_mean": scale.mean,
        "train/ret_std": scale.std,
        "train/return_stats/decode_encode_mismatch": torch.stack(gaps).max(),
        "train/value_target_scale": 1.0 / scale.std,
        "train/clip_active_frac/limit": mean(at_limit.double(), weights),
        **_quartiles(agent, seen, weights),
        **_range(ppo, seen, weights),
    }


def spreads(ppo: Ppo) -> Values:
    """Return the spread of returns before any floor, and the gain that belongs to it."""
    return {
        "train/return_stats/std_unfloored": ppo.returns.unfloored,
        "train/return_stats/unfloored_scale": ppo.returns.target_scale(),
    }


def _quartiles(agent: Agent, seen: Seen, weights: Weights) -> Values:
    """Return median and quartile range of the predicted distributions, means of the rollout."""
    kind = agent.spec.critic.kind
    if kind == "scalar":
        return {}
    joint = agent.network.critic.distribution(seen.predicted)
    if kind == "categorical":
        atoms = agent.network.critic.atoms
        low, middle, high = (
            risk.categorical_value_at_risk(joint, atoms, alpha=level) for level in (0.25, 0.5, 0.75)
        )
    else:
        own = agent.network.critic.weights()
        levels = risk.values_at_risk(joint, alphas=(0.25, 0.5, 0.75), weight=own)
        low, middle, high = levels.unbind(-1)
    width = mean(high - low, weights)
    return {
        "train/value_quantile_p50": agent.return_scale.decode(mean(middle, weights)),
        "train/value_quantile_iqr": width * agent.return_scale.std,
        "train/value_quantile_iqr_norm": width,
    }


def _range(ppo: Ppo, seen: Seen, weights: Weights) -> Values:
    """Return the share of targets at the bound of their range."""
    agent = ppo.agent
    if agent.spec.critic.kind != "categorical":
        clipped = (seen.target.abs() >= ppo.config.returns.ret_clip).double()
        outside = quantile.expectation(clipped, weight=atom_weights(agent, seen.target))
        return {"train/clip_active_frac/norm": mean(outside, weights)}
    atoms = agent.network.critic.atoms
    normal = agent.return_scale.encode(seen.estimates.returns)
    below, above = (
        mean(outside.double(), weights) for outside in categorical.outside_support(normal, atoms)
    )
    return {
        "train/v_min": atoms[0],
        "train/v_max": atoms[-1],
        "train/value_target_below_frac": below,
        "train/value_target_above_frac": above,
        "train/clip_active_frac/norm": below + above,
    }


def memory(state: Tensor, rollout: Rollout) -> Values:
    """Return statistics of the memory at the rollout's end, and of resets within it."""
    layers = layer_statistics(state)
    if not layers:
        return {}
    reset = Weights.of(rollout.reset.double())
    return {
        **layers,
        "lstm/h_norm_pre_reset": mean(rollout.hidden_norm[..., 0], reset),
        "lstm/h_norm_post_reset": mean(rollout.hidden_norm[..., 1], reset),
    }


def layer_statistics(state: Tensor) -> Values:
    """Return statistics of each layer of a state [B, L, P, H], over environments and units.

    The critics' own layers follow those that the actor uses. P is 2 for an LSTM (hidden, cell).
    """
    values: Values = {}
    for layer, parts in enumerate(state.unbind(1)):
        hidden = parts[:, 0].double()
        values |= {
            f"lstm/h_mean_layer{layer}": hidden.mean(),
            f"lstm/h_std_layer{layer}": hidden.std(correction=0),
            f"lstm/h_norm_layer{layer}": torch.linalg.vector_norm(hidden, dim=-1).mean(),
            f"lstm/h_saturated_frac_layer{layer}": (hidden.abs() > SATURATED).double().mean(),
        }
        if parts.shape[1] == 2:
            values[f"lstm/c_max_abs_layer{layer}"] = parts[:, 1].abs().max()
    return values


def observations(ppo: Ppo, seen: Seen) -> Values:
    """Return how far this rollout moved the statistics of the columns that are scaled by them."""
    spec = ppo.agent.spec
    names = enumerate(spec.observation_names)
    places = [place for place, name in names if name not in spec.unscaled]
    before, after = (
        Moments(moments.count, _at(moments.mean, places), _at(moments.m2, places))
        for moments in (seen.observation_before, ppo.agent.observation_scale.moments)
    )
    shift, widening = statistics.drift(before, after)
    known = before.count > 0.0
    return {
        "debug/vecnormalize_mean_drift": torch.where(known, shift, torch.nan),
        "debug/vecnormalize_std_drift": torch.where(known, widening, torch.nan),
    }


def _at(row: Tensor, places: list[int]) -> Tensor:
    """Return some entries of a row; as slices, for an index would be copied to the device."""
    return torch.cat([row[place : place + 1] for place in places]) if places else row[:0]
