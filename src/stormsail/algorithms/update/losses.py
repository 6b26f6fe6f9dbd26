"""The loss of a batch of sequences: policy, critics, entropy, KL penalty, AWR, robust KL.

Every term is a weighted sum over samples. The caller adds up several batches and divides once, at
the end, by the weight that was really used.

With an adversary some sequences are seen twice, clean and attacked. `docs/adversary.md` says which
term sees what.
"""

from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.update import critic_targets
from stormsail.algorithms.update.adversary import (
    Adversary,
    Objective,
    attacked_observations,
    policy_divergence,
)
from stormsail.algorithms.update.schedules import Scheduled, is_zero
from stormsail.core.errors import DataError
from stormsail.core.precision import network_precision
from stormsail.functional import perturbation, policy, risk, statistics, twin
from stormsail.functional.kernels.devices import may_launch
from stormsail.functional.kernels.losses.policy_loss import policy_sums
from stormsail.functional.kernels.sequences import chosen_sequences
from stormsail.modules.actions import CategoricalHead, grid_log_prob
from stormsail.modules.agent import Agent

EXTREME_LOG_RATIO = 10.0


@dataclass(frozen=True, eq=False)
class Batch:
    """Training sequences, time first: L rows of n sequences."""

    observation: Tensor
    """Normalised, [L, n, F]."""
    memory: Tensor
    """Before the first row, [n, L, P, H]."""
    reset: Tensor
    raw_action: Tensor
    log_prob: Tensor
    """Under the policy of the rollout."""
    parameters: Tensor
    """Of its distribution."""
    mask: Tensor
    """Actions that were allowed, bool [L, n, D]; [L, n, 0] of a task without masks."""
    predicted: Tensor
    """Output of its critics, on the current return scale, [L, n, C, W]."""
    weight: Tensor
    advantage: Tensor
    """Normalised."""
    target: Tensor
    """Encoded, [L, n, M]."""
    options: Tensor
    """Advantage of every action, scaled, [L, n, K]; K is 0 where there is none."""


class Sums(NamedTuple):
    """Sums over the samples of a batch, each weighted; 0-dim tensors."""

    loss: Tensor
    """All terms with their coefficients; carries the gradient."""
    weight: Tensor
    """Weight that was used: of all samples but the dropped ones."""
    policy: Tensor
    value: Tensor
    value_by_critic: Tensor
    """[C]."""
    entropy: Tensor
    kl: Tensor
    """k3 estimate."""
    analytic_kl: Tensor
    bc: Tensor
    log_ratio: Tensor
    log_ratio_square: Tensor
    ratio_excess: Tensor
    """Of the ratio minus 1: about 1 itself, a spread below 1e-4 would be lost in float32."""
    ratio_excess_square: Tensor
    clipped: Tensor
    extreme: Tensor
    vf_clipped: Tensor
    huber_linear: Tensor
    crossing: Tensor
    value_gap: Tensor
    log_ratio_max: Tensor
    """Largest size, not a sum."""
    nan: Tensor
    """Samples whose log ratio is NaN."""
    inf: Tensor
    attacks: Tensor
    """1 if sequences of this batch were attacked."""
    attacked: Tensor
    """Weight of their samples; the sums below are over these."""
    robust_kl: Tensor
    """KL(clean || attacked)."""
    perturbation: Tensor
    """Size of the perturbations."""
    attacked_policy: Tensor
    """Surrogate on attacked observations."""
    attacked_value: Tensor
    attacked_entropy: Tensor


class Attacked(NamedTuple):
    """The k sequences of a batch that were attacked, and the network's outputs on them."""

    chosen: Tensor
    """Their places in the batch, int64 [k]."""
    batch: Batch
    """These sequences, clean."""
    parameters: Tensor
    """Of the policy on attacked observations, [L, k, D]."""
    predicted: Tensor
    """Output of the critics on them, [L, k, C, W]."""
    divergence: Tensor
    """KL(clean || attacked), [L, k]; the clean side is a constant."""
    size: Tensor
    """Of the perturbations, [L, k]."""


def select(data: Batch, chosen: Tensor, *, held: bool = True) -> Batch:
    """Return some of the sequences.

    Args:
        data: all of them.
        chosen: places, int64 [n].
        held: with the old predictions that new ones may be held to; they are most of a row, and
            where nothing is clipped they come without columns, [L, n, C, 0].
    """
    parts = {}
    for field in fields(data):
        value = getattr(data, field.name)
        if field.name == "predicted" and not held:
            value = value[..., :0]
        axis = 0 if field.name == "memory" else 1
        parts[field.name] = chosen_sequences(value, chosen, axis)
    return Batch(**parts)


def batch_sums(
    agent: Agent,
    batch: Batch,
    now: Scheduled,
    config: TrainConfig,
    generator: torch.Generator,
    *,
    imitation: Tensor | None = None,
    adversary: Adversary | None = None,
    attacked_count: int = 0,
    outputs: tuple[Tensor, Tensor] | None = None,
) -> Sums:
    """Return the weighted sums of all terms of a batch.

    Args:
        agent: is trained.
        batch: sequences.
        now: coefficients of this update.
        config: of the run.
        generator: of sampled entropies.
        imitation: mean AWR weight of the whole minibatch that this batch is a part of; None takes
            that of this batch.
        adversary: attacks sequences while its radius is not 0; None without one.
        attacked_count: how many of them.
        outputs: actor's and critics', where the network was run before.
    """
    network = agent.network
    if outputs is None:
        with network_precision(config.precision, batch.weight.device):
            output = network(batch.observation, batch.memory, batch.reset)
        outputs = (output.actor, output.critic)
    actor, critic = outputs
    parameters = network.head.masked(actor, batch.mask)
    if adversary is None and fuses_policy(agent, batch, now, config):
        return _fused_sums(agent, parameters, critic, batch, now, config)
    log_prob = network.head.log_prob(parameters, batch.raw_action)
    with network_precision(config.precision, batch.weight.device):
        attacked = _attacked(agent, batch, parameters, now, config, adversary, attacked_count)
    mixed, predicted, mixed_log_prob = parameters, critic, log_prob
    if attacked is not None and config.adversary.mode == "mixed_batch":
        mixed = parameters.index_copy(1, attacked.chosen, attacked.parameters)
        predicted = critic.index_copy(1, attacked.chosen, attacked.predicted)
        mixed_log_prob = network.head.log_prob(mixed, batch.raw_action)
        # a sample is good if it is on both observations
        log_prob = torch.where(mixed_log_prob.isfinite(), log_prob, mixed_log_prob)
        finite = (log_prob - batch.log_prob).isfinite()
        mixed_log_prob = torch.where(finite, mixed_log_prob, 0.0)
    bad = policy.count_nonfinite(torch.where(batch.weight > 0.0, log_prob - batch.log_prob, 0.0))
    log_prob, old_log_prob, weight = _guarded(log_prob, batch, config)
    log_ratio = log_prob - old_log_prob
    if mixed is parameters:
        mixed_log_prob = log_prob

    surrogate = _surrogate(agent, mixed, mixed_log_prob, old_log_prob, batch, now)
    analytic = network.head.kl(batch.parameters, parameters)
    bounded = log_ratio.clamp(-policy.LOG_RATIO_LIMIT, policy.LOG_RATIO_LIMIT)
    estimate = policy.kl_estimate(bounded, kind="k3")
    entropy = _entropy(agent, parameters, config, generator)
    unit = imitation_unit(batch, now, config) if imitation is None else imitation
    imitated = _imitation(log_prob, batch.advantage, now, config) / unit
    value, by_critic, vf_clipped, seen = _value_terms(agent, predicted, batch, now, config)
    if predicted is not critic:  # what is reported is of clean observations
        seen = None
    loss = now.vf_coef * value
    if not is_zero(now.legacy_risk):
        loss = loss - now.legacy_risk * legacy_cvar(
            agent,
            critic,
            alpha=config.risk.cvar_alpha,
            estimator=config.risk.cvar_estimator,
        )
    if now.trains_policy:
        loss = (
            loss
            + surrogate
            + now.ent_coef * policy.entropy_loss(entropy, log_prob)
            + now.kl_beta * analytic
            + now.bc_coef * imitated
        )
        if attacked is not None:
            robust = torch.zeros_like(loss).index_copy(1, attacked.chosen, attacked.divergence)
            loss = loss + config.adversary.robust_kl_coef * robust
    columns = {
        "policy": surrogate,
        "value": value,
        "entropy": entropy,
        "kl": estimate,
        "analytic_kl": analytic,
        "bc": imitated,
        "vf_clipped": vf_clipped,
        **_ratio_columns(log_ratio.detach(), bounded.detach(), now),
        **_critic_columns(agent, critic.detach(), batch, seen),
    }
    totals = _totals(torch.stack(list(columns.values())), weight)
    return Sums(
        loss=_totals(loss[None], weight)[0],  # apart: no gradient of 0 goes back through the others
        weight=weight.sum(),
        value_by_critic=_totals(by_critic.movedim(-1, 0), weight),
        log_ratio_max=torch.where(weight > 0.0, log_ratio.abs(), 0.0).max(),
        nan=bad.nan,
        inf=bad.inf,
        **dict(zip(columns, totals.unbind(), strict=True)),
        **_attacked_sums(agent, attacked, weight, now, config),
    )


def fuses_policy(agent: Agent, batch: Batch, now: Scheduled, config: TrainConfig) -> bool:
    """Return whether the policy's terms are one kernel: known from settings and shapes alone."""
    return (
        isinstance(agent.network.head, CategoricalHead)
        and now.trains_policy
        and is_zero(now.bc_coef)
        and config.ppo.nonfinite_policy == "drop"
        and may_launch(batch.weight)
    )


def _fused_sums(
    agent: Agent,
    parameters: Tensor,
    predicted: Tensor,
    batch: Batch,
    now: Scheduled,
    config: TrainConfig,
) -> Sums:
    """Return the sums of `batch_sums` with all terms of the policy from one kernel."""
    every = batch.options if batch.options.shape[-1] else batch.advantage
    seen = policy_sums(
        parameters,
        batch.raw_action,
        batch.log_prob,
        batch.parameters,
        every,
        batch.weight,
        clip=now.clip_range,
        entropy_coef=now.ent_coef,
        kl_coef=now.kl_beta,
        extreme=EXTREME_LOG_RATIO,
    )
    weight = seen.used
    value, by_critic, vf_clipped, by_loss = _value_terms(agent, predicted, batch, now, config)
    loss = now.vf_coef * value
    if not is_zero(now.legacy_risk):
        risk_config = config.risk
        loss = loss - now.legacy_risk * legacy_cvar(
            agent, predicted, alpha=risk_config.cvar_alpha, estimator=risk_config.cvar_estimator
        )
    columns = {
        "value": value,
        "vf_clipped": vf_clipped,
        **_critic_columns(agent, predicted.detach(), batch, by_loss),
    }
    totals = _totals(torch.stack(list(columns.values())), weight)
    named = {name: part for name, part in seen._asdict().items() if name in Sums._fields}
    named |= {
        "loss": seen.loss + _totals(loss[None], weight)[0],
        "nan": seen.nan.long(),
        "inf": seen.inf.long(),
    }
    return Sums(
        value_by_critic=_totals(by_critic.movedim(-1, 0), weight),
        bc=torch.zeros_like(seen.policy),
        **named,
        **dict(zip(columns, totals.unbind(), strict=True)),
        **_attacked_sums(agent, None, weight, now, config),
    )


def _attacked(
    agent: Agent,
    batch: Batch,
    clean: Tensor,
    now: Scheduled,
    config: TrainConfig,
    adversary: Adversary | None,
    count: int,
) -> Attacked | None:
    """Attack some sequences of a batch, drawn by the adversary; None where nothing is attacked.

    Whole sequences, since what the memory keeps of a forged row changes all later ones: within one
    sequence no row after it would be clean.
    """
    network, wanted = agent.network, config.adversary
    mixes = wanted.mode == "mixed_batch"
    raises_value = mixes and wanted.attack_value
    raises_policy = now.trains_policy and (wanted.attack_policy or not mixes)
    if adversary is None or count == 0 or now.epsilon == 0.0:
        return None
    if not (raises_policy or raises_value):
        return None
    source, total = adversary.generator, batch.weight.shape[1]
    if mixes:
        order = torch.randperm(total, generator=source, device=source.device)
        chosen = order[:count].to(batch.weight.device)
        part = select(batch, chosen)
    else:
        chosen, part = torch.arange(total, device=batch.weight.device), batch
    fixed = clean.detach().index_select(1, chosen)

    def loss(observation: Tensor) -> Tensor:
        output = network(observation, part.memory, part.reset)
        return _attacked_loss(
            agent,
            (network.head.masked(output.actor, part.mask), output.critic),
            part,
            now,
            config,
            wants=(raises_policy, raises_value),
        )

    objective: Objective = loss
    if not mixes:
        objective = policy_divergence(network, fixed, part.memory, part.reset, part.mask)
    observation = attacked_observations(
        part.observation,
        objective,
        wanted,
        adversary,
        epsilon=now.epsilon,
        weight=part.weight,
    )
    output = network(observation, part.memory, part.reset)
    parameters = network.head.masked(output.actor, part.mask)
    return Attacked(
        chosen=chosen,
        batch=part,
        parameters=parameters,
        predicted=output.critic,
        divergence=network.head.kl(fixed, parameters),
        size=perturbation.perturbation_size(observation - part.observation, norm=wanted.norm_type),
    )


def _attacked_loss(
    agent: Agent,
    outputs: tuple[Tensor, Tensor],
    batch: Batch,
    now: Scheduled,
    config: TrainConfig,
    *,
    wants: tuple[bool, bool],
) -> Tensor:
    """Return what an attack of `mixed_batch` raises: the losses of policy and critics, [L, n]."""
    parameters, predicted = outputs
    rows = torch.zeros_like(batch.weight)
    if wants[0]:
        log_prob = agent.network.head.log_prob(parameters, batch.raw_action)
        rows = rows + _surrogate(agent, parameters, log_prob, batch.log_prob, batch, now)
    if wants[1]:
        losses = twin.twin_loss(*_value_losses(agent, predicted, batch, now, config))
        rows = rows + now.vf_coef * losses
    return rows


@torch.no_grad()
def _attacked_sums(
    agent: Agent, attacked: Attacked | None, weight: Tensor, now: Scheduled, config: TrainConfig
) -> dict[str, Tensor]:
    """Return the sums over attacked samples, 0 where there are none."""
    names = ("robust_kl", "perturbation", "attacked_policy", "attacked_value", "attacked_entropy")
    if attacked is None:
        zero = torch.zeros_like(weight[0, 0])
        return dict.fromkeys(("attacks", "attacked", *names), zero)
    head, part = agent.network.head, attacked.batch
    log_prob = head.log_prob(attacked.parameters, part.raw_action)
    value = twin.twin_loss(*_value_losses(agent, attacked.predicted, part, now, config))
    columns = (
        attacked.divergence,
        attacked.size,
        _surrogate(agent, attacked.parameters, log_prob, part.log_prob, part, now),
        value,
        head.entropy(attacked.parameters),
    )
    used = weight.index_select(1, attacked.chosen)
    totals = _totals(torch.stack(columns), used)
    return {
        "attacks": torch.ones_like(used[0, 0]),
        "attacked": used.sum(),
        **dict(zip(names, totals.unbind(), strict=True)),
    }


def _surrogate(
    agent: Agent,
    parameters: Tensor,
    log_prob: Tensor,
    old_log_prob: Tensor,
    batch: Batch,
    now: Scheduled,
) -> Tensor:
    """Return the policy's loss of each sample: of the action taken, or expected over all."""
    network = agent.network
    if not batch.options.shape[-1]:
        return policy.clipped_surrogate(
            log_prob, old_log_prob, batch.advantage, clip=now.clip_range
        )
    return policy.expected_surrogate(
        grid_log_prob(network.head, parameters, network.grid),
        grid_log_prob(network.head, batch.parameters, network.grid),
        batch.options,
        clip=now.clip_range,
    )


def _totals(columns: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted sum of each column over the rows that count: [k, L, n] -> [k]."""
    return torch.where(weight > 0.0, columns * weight, 0.0).sum((1, 2))


def _ratio_columns(log_ratio: Tensor, bounded: Tensor, now: Scheduled) -> dict[str, Tensor]:
    """Return statistics of the probability ratios, [L, n] each."""
    excess = bounded.expm1()
    return {
        "log_ratio": log_ratio,
        "log_ratio_square": log_ratio.square(),
        "ratio_excess": excess,
        "ratio_excess_square": excess.square(),
        "clipped": policy.ratio_is_clipped(log_ratio, clip=now.clip_range).to(excess.dtype),
        "extreme": (log_ratio.abs() > EXTREME_LOG_RATIO).to(excess.dtype),
    }


def _critic_columns(
    agent: Agent, predicted: Tensor, batch: Batch, seen: critic_targets.Seen | None
) -> dict[str, Tensor]:
    """Return statistics of the predictions, [L, n] each, if the loss has not `seen` them."""
    if seen is None:
        seen = critic_targets.seen(agent, predicted, batch.target)
    gap = seen.means.amax(-1) - seen.means.amin(-1)
    return {
        "huber_linear": seen.linear,
        "crossing": seen.crossing,
        "value_gap": gap * agent.return_scale.std.to(gap.dtype),
    }


def _guarded(log_prob: Tensor, batch: Batch, config: TrainConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Return log probabilities and weights after the rule for non-finite ratios."""
    rule = config.ppo.nonfinite_policy
    if rule == "drop":
        return policy.drop_nonfinite(log_prob, batch.log_prob, batch.weight)
    # an ignored row is replaced as well: 0 times NaN is NaN on the way back
    finite = (log_prob - batch.log_prob).isfinite()
    bad = ~finite & (batch.weight > 0.0)
    if rule == "raise" and bool(bad.any()):
        raise DataError(
            "data-defects",
            wrong="every log ratio must be finite",
            found=f"{int(bad.sum())} that are not",
            remedy="Lower the learning rate, or set `ppo.nonfinite_policy` to `drop`.",
        )
    new, old = (torch.where(finite, part, 0.0) for part in (log_prob, batch.log_prob))
    return new, old, batch.weight * ~bad.any() if rule == "skip" else batch.weight


def _entropy(
    agent: Agent, parameters: Tensor, config: TrainConfig, generator: torch.Generator
) -> Tensor:
    head = agent.network.head
    if config.entropy.entropy_mode == "corrected_mc":
        return head.squashed_entropy(parameters, generator)
    return head.entropy(parameters)


def _imitation(log_prob: Tensor, advantage: Tensor, now: Scheduled, config: TrainConfig) -> Tensor:
    """Return the AWR loss of each sample; 0, without computing it, where its coefficient is 0."""
    if is_zero(now.bc_coef):
        return torch.zeros_like(log_prob)
    options = {"beta": config.bc.awr_temperature, "max_weight": config.bc.max_weight}
    return policy.awr_loss(log_prob, advantage, **options)


def imitation_unit(batch: Batch, now: Scheduled, config: TrainConfig) -> Tensor:
    """Return the divisor of the AWR loss: the mean AWR weight of samples with weight, or 1."""
    if is_zero(now.bc_coef) or not config.bc.awr_normalize:
        return torch.ones_like(batch.weight[0, 0])
    options = {"beta": config.bc.awr_temperature, "max_weight": config.bc.max_weight}
    mean = statistics.weighted_mean(policy.awr_weight(batch.advantage, **options), batch.weight)
    return torch.where(mean > 0.0, mean, 1.0)


def legacy_cvar(agent: Agent, predicted: Tensor, *, alpha: float, estimator: str) -> Tensor:
    """Return the CVaR that the critics predict, normalised, [*b]; with gradient.

    Risk term of an earlier system, for comparison only (`critic_legacy`). It rewards the critics
    for predicting a light tail. A state's distribution does not depend on the action that was
    drawn in it, so layers that belong to the actor alone get no gradient.

    No copy of the original: there is no hinge under a constraint, (weight + multiplier) times CVaR
    is added as a gain whether or not the limit is broken, where a hinge would punish
    max(0, limit - CVaR). The CVaR is normalised, so the coefficient is in other units than the
    limit. Everything that the critics' output went through gets the gradient, a shared memory
    included.

    Args:
        agent: owns the critics.
        predicted: their output, [*b, C, W].
        alpha: share of worst outcomes.
        estimator: how quantiles are read.
    """
    critic = agent.network.critic
    joint = critic.distribution(predicted)
    if agent.spec.critic.kind == "categorical":
        return risk.categorical_cvar(joint, critic.atoms.to(joint.dtype), alpha=alpha)
    return risk.cvar(joint, alpha=alpha, estimator=estimator, weight=critic.weights())


def _value_losses(
    agent: Agent, predicted: Tensor, batch: Batch, now: Scheduled, config: TrainConfig
) -> tuple[Tensor, Tensor]:
    """Return the loss of each critic, plain and clipped; the same one twice without clipping."""
    return _measured_losses(agent, predicted, batch, now, config)[:2]


def _value_terms(
    agent: Agent, predicted: Tensor, batch: Batch, now: Scheduled, config: TrainConfig
) -> tuple[Tensor, Tensor, Tensor, critic_targets.Seen | None]:
    """Return the critics' loss of each sample, that of each critic, and where clipping was worse.

    Last what the loss has seen on the way.
    """
    by_critic, clipped_by_critic, seen = _measured_losses(agent, predicted, batch, now, config)
    value = twin.twin_loss(by_critic, clipped_by_critic)
    clipped = (clipped_by_critic > by_critic).to(value.dtype).mean(-1)
    return value, by_critic, clipped, seen


def _measured_losses(
    agent: Agent, predicted: Tensor, batch: Batch, now: Scheduled, config: TrainConfig
) -> tuple[Tensor, Tensor, critic_targets.Seen | None]:
    """Return `_value_losses`, and what they have seen on the way."""
    plain, seen = critic_targets.losses_and_seen(agent, predicted, batch.target)
    if not now.clips_values:
        return plain, plain, seen
    clipped = critic_targets.clipped_losses(agent, predicted, batch.predicted, batch.target, config)
    return plain, clipped, seen
