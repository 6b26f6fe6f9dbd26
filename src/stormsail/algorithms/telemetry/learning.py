"""Metrics of the epochs: losses, probability ratios, KL divergence, gradients."""

import math
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn

from stormsail.algorithms.ppo import Ppo, Update
from stormsail.algorithms.telemetry.values import Values, largest, mean, share
from stormsail.algorithms.update.adversary import attacked_count
from stormsail.algorithms.update.epochs import EpochReport, MinibatchReport
from stormsail.algorithms.update.losses import Sums
from stormsail.functional.statistics import percentile

Held: TypeAlias = nn.Module | list[nn.Parameter]
"""Parameters whose gradients are measured together."""

STOP_RULES = ("", "absolute", "consecutive", "fraction")
"""Rules that end the epochs; `train/kl_stop_reason` is the place in this list."""


def summed(reports: list[MinibatchReport]) -> Sums:
    """Return the sums over all minibatches; the largest of what is a maximum."""
    columns = zip(*(report.sums for report in reports), strict=True)
    total = Sums(*(torch.stack(column).sum(0) for column in columns))
    largest_one = torch.stack([report.sums.log_ratio_max for report in reports]).max()
    return total._replace(log_ratio_max=largest_one)


def losses(ppo: Ppo, update: Update, sums: Sums) -> Values:
    """Return the mean of every term of the loss over all samples of all epochs."""
    now = update.now

    def average(part: Tensor) -> Tensor:
        return share(part, sums.weight)

    surrogate, imitation = average(sums.policy), average(sums.bc)
    penalty = now.kl_beta * average(sums.analytic_kl)
    by_critic = [average(part) for part in sums.value_by_critic.unbind()]
    values: Values = {
        "train/loss": average(sums.loss),
        "train/policy_loss": surrogate + now.bc_coef * imitation + penalty,
        "train/policy_loss_ppo": surrogate,
        "train/policy_loss_bc": imitation,
        "train/policy_loss_bc_weighted": now.bc_coef * imitation,
        "train/policy_loss_kl_penalty": penalty,
        "train/policy_bc_coef": now.bc_coef,
        "train/policy_bc_vs_ppo_ratio": share((now.bc_coef * imitation).abs(), surrogate.abs()),
        "train/value_loss": average(sums.value),
        "train/entropy_loss": -average(sums.entropy),
        "train/policy_entropy": average(sums.entropy),
    }
    if ppo.agent.spec.critic.kind == "quantile":
        values["train/quantile_crossing_frac"] = average(sums.crossing)
    if len(by_critic) == 2:
        values |= {
            "train/twin_critics/critic_1_loss": by_critic[0],
            "train/twin_critics/critic_2_loss": by_critic[1],
            "train/twin_critics/loss_diff": by_critic[0] - by_critic[1],
            "train/twin_critics/value_gap": average(sums.value_gap),
        }
    return values


def ratios(sums: Sums) -> Values:
    """Return statistics of the probability ratios."""
    log_mean, excess = (share(part, sums.weight) for part in (sums.log_ratio, sums.ratio_excess))
    log_square = share(sums.log_ratio_square, sums.weight)
    excess_square = share(sums.ratio_excess_square, sums.weight)
    clipped = share(sums.clipped, sums.weight)
    return {
        "train/log_ratio_mean": log_mean,
        "train/log_ratio_std": (log_square - log_mean.square()).clamp(min=0.0).sqrt(),
        "train/log_ratio_max_abs": sums.log_ratio_max,
        "train/log_ratio_extreme_fraction": share(sums.extreme, sums.weight),
        "train/log_ratio_nan_count": sums.nan,
        "train/log_ratio_inf_count": sums.inf,
        "train/ratio_mean": 1.0 + excess,
        "train/ratio_std": (excess_square - excess.square()).clamp(min=0.0).sqrt(),
        "train/clip_fraction": clipped,
        "train/clip_active_frac/ratio": clipped,
        "train/clip_active_frac/vf": share(sums.vf_clipped, sums.weight),
        "train/clip_active_frac/quantile": share(sums.huber_linear, sums.weight),
    }


def divergence(ppo: Ppo, update: Update, sums: Sums) -> Values:
    """Return the KL divergence of the update and the state of its control."""
    seen = torch.tensor(update.learned.divergence, dtype=torch.float64)
    every = torch.ones_like(seen, dtype=torch.bool)
    config, control = ppo.config.kl, ppo.kl
    target = math.nan if config.target_kl is None else config.target_kl
    average = math.nan if control.average is None else control.average
    return {
        "train/approx_kl": share(sums.kl, sums.weight),
        "train/approx_kl_raw": -share(sums.log_ratio, sums.weight),
        "train/approx_kl_median": percentile(seen, every, level=0.5),
        "train/approx_kl_p90": percentile(seen, every, level=0.9),
        "train/approx_kl_max": largest(seen, every),
        "train/approx_kl_ema": average,
        "train/kl_analytic": share(sums.analytic_kl, sums.weight),
        "train/kl_target": target,
        "train/kl_exceed_fraction": share((seen > target).sum(), every.sum()),
        "train/kl_early_stop": float(update.learned.stopped != ""),
        "train/kl_stop_reason": float(STOP_RULES.index(update.learned.stopped)),
        "train/kl_beta": update.now.kl_beta,
        "train/kl_error": control.error,
        "train/kl_integral": control.integral,
    }


def adversary(ppo: Ppo, update: Update, sums: Sums) -> Values:
    """Return what the adversary did, over all epochs; nothing without one."""
    config = ppo.config.adversary
    if not config.acts:
        return {}
    if config.attacks_rollouts:
        return _forger(ppo, update)

    def average(part: Tensor) -> Tensor:
        return share(part, sums.attacked)

    return {
        "sa_ppo/enabled": 1.0,
        "sa_ppo/update_count": float(update.number + 1),
        "sa_ppo/current_epsilon": update.now.epsilon,
        "sa_ppo/attack_count": sums.attacks,
        "sa_ppo/adversarial_samples": sums.attacked,
        "sa_ppo/clean_samples": sums.weight - sums.attacked,
        "sa_ppo/adversarial_ratio": share(sums.attacked, sums.weight),
        "sa_ppo/robust_kl_penalty": config.robust_kl_coef * share(sums.robust_kl, sums.weight),
        "sa_ppo/avg_perturbation_norm": average(sums.perturbation),
        "sa_ppo/policy_loss": average(sums.attacked_policy),
        "sa_ppo/value_loss": average(sums.attacked_value),
        "sa_ppo/entropy": average(sums.attacked_entropy),
    }


def _forger(ppo: Ppo, update: Update) -> Values:
    """Return what an adversary did that forges rollouts; each sample counts once."""
    seen, config = update.rollout, ppo.config.adversary
    count = 0 if seen.forged is None else attacked_count(config, 0, ppo.task.batch)
    weight = torch.zeros_like(seen.weight)
    weight[:, len(weight[0]) - count :] = seen.weight[:, len(weight[0]) - count :]
    size = weight if seen.forged is None else seen.forged
    whole, forged = seen.weight.sum(), weight.sum()
    return {
        "sa_ppo/enabled": 1.0,
        "sa_ppo/update_count": float(update.number + 1),
        "sa_ppo/current_epsilon": update.now.epsilon,
        "sa_ppo/attack_count": float(len(weight) if count else 0),
        "sa_ppo/adversarial_samples": forged,
        "sa_ppo/clean_samples": whole - forged,
        "sa_ppo/adversarial_ratio": share(forged, whole),
        "sa_ppo/robust_kl_penalty": 0.0,
        "sa_ppo/avg_perturbation_norm": mean(size, weight),
        "sa_ppo/policy_loss": -mean(update.advantage, weight),
        "sa_ppo/value_loss": math.nan,
        "sa_ppo/entropy": mean(ppo.agent.network.head.entropy(seen.parameters), weight),
    }


def steps(ppo: Ppo, update: Update, sums: Sums) -> Values:
    """Return the number and size of minibatches and steps."""
    learned, config = update.learned, ppo.config.ppo
    length = config.sequence_length or config.n_steps
    taken = [report for report in learned.minibatches if not report.skipped]
    stepped = _stepped(learned)
    return {
        "train/epochs": float(learned.epochs),
        "train/minibatches": float(len(learned.minibatches)),
        "train/minibatches_skipped": float(len(learned.minibatches) - len(taken)),
        "train/optimizer_steps": stepped.sum(),
        "train/steps_refused": (~stepped).sum(),
        "train/expected_batch_size": float(config.batch_size * length),
        "train/actual_batch_size": sums.weight.double() / max(len(taken), 1),
        "train/microbatch_size": float((config.microbatch_size or config.batch_size) * length),
        "train/grad_accum_steps": float(
            max((report.micro_batches for report in learned.minibatches), default=0)
        ),
    }


def gradients(ppo: Ppo, update: Update) -> Values:
    """Return norms of gradients: means over the steps that were taken, and the largest."""
    taken = [report for report in update.learned.minibatches if not report.skipped]
    stepped = _stepped(update.learned)
    values: Values = {}
    for name, label in (
        ("raw_norm", "grad_norm_raw"),
        ("grad_norm_pre_clip", "grad_norm_pre_clip"),
        ("grad_norm_post_clip", "grad_norm_post_clip"),
    ):
        norms = _stacked([getattr(report.gradient, name) for report in taken], stepped)
        values[f"train/{label}"] = mean(torch.where(stepped, norms, 0.0), stepped.double())
        if name != "raw_norm":
            values[f"train/{label}_max"] = largest(norms, stepped)
    order = _order(ppo)
    for label, module in _watched(ppo).items():
        norms = module_norms(ppo, module, taken, order=order)
        values[label] = mean(torch.where(stepped, norms, 0.0), stepped.double())
    first, second = (values.get(f"train/critic{n}_grad_norm") for n in (1, 2))
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        values["train/critics_grad_ratio"] = share(first, second)
    return values | _scaled(ppo, taken)


def module_norms(
    ppo: Ppo, module: Held, taken: list[MinibatchReport], *, order: dict[int, int] | None = None
) -> Tensor:
    """Return the raw gradient norm of a module's own tensors at each step, each counted once.

    The tensors are found by identity, not by name: sqrt(sum of squares) over what the module
    holds, whatever it is called and however it is nested. `order` is that of `_order`, for many
    modules of one learner.
    """
    places = _places(module, _order(ppo) if order is None else order)
    if not taken or not places:
        return torch.zeros(len(taken), dtype=torch.float64)
    norms = torch.stack([report.gradient.norms for report in taken]).double()
    return norms[:, places].square().sum(-1).sqrt()


def _order(ppo: Ppo) -> dict[int, int]:
    """Return the place of each parameter in a report, by identity."""
    order = {name: place for place, name in enumerate(ppo.pipeline.names)}
    return {id(value): order[name] for name, value in ppo.agent.named_parameters()}


def _places(module: Held, order: dict[int, int]) -> list[int]:
    held = module.parameters() if isinstance(module, nn.Module) else module
    return list(dict.fromkeys(order[id(value)] for value in held))


def _watched(ppo: Ppo) -> dict[str, Held]:
    """Return the modules with a gradient norm of their own, by metric name."""
    network = ppo.agent.network
    modules: dict[str, Held] = {}
    for number, head in enumerate(network.critic.heads, start=1):
        modules[f"train/critic{number}_grad_norm"] = head
    for name, trunk in (("trunk", network.trunk), ("critic_trunk", network.critic_trunk)):
        if trunk is None or trunk.memory.layers == 0:
            continue
        memory = trunk.memory
        modules[f"train/lstm_grad_norm/{name}"] = memory
        for layer in range(memory.layers):
            # `initial` is one tensor for all layers and counts for the module only.
            modules[f"train/lstm_grad_norm/{name}_layer{layer}"] = [
                memory.input_weights[layer],
                memory.hidden_weights[layer],
                memory.input_biases[layer],
                memory.hidden_biases[layer],
            ]
    return modules


def _scaled(ppo: Ppo, taken: list[MinibatchReport]) -> Values:
    """Return the norms of the critics' last gradients after the scaler's factors, where it runs."""
    scaler = ppo.pipeline.scaler
    if scaler is None:
        return {}
    factors = ppo.recorder("factors of the scaler", partial(_factors, ppo), ())
    if taken:
        factors = factors.to(taken[-1].gradient.norms.device)  # once: each move is a wait
    values: Values = {}
    order = _order(ppo)
    for number, head in enumerate(ppo.agent.network.critic.heads, start=1):
        places = _places(head, order)
        label = f"train/critic{number}_grad_norm_scaled"
        if not taken:
            values[label] = math.nan
            continue
        last = taken[-1].gradient.norms.double()
        values[label] = (last[places] * factors[places]).square().sum().sqrt()
    return values


def _factors(ppo: Ppo, _: tuple[()]) -> Tensor:
    """Return the scaler's factor of every tensor in the order of a report, float64 [P]."""
    if ppo.pipeline.scaler is None:
        raise LookupError("no scaler, so no factors")
    own = ppo.pipeline.scaler.factors()
    return torch.stack([own[name] for name in ppo.pipeline.names]).double()


def _stepped(learned: EpochReport) -> Tensor:
    """Return which of the minibatches that were not skipped led to a step, bool [M]."""
    flags = [report.gradient.stepped for report in learned.minibatches if not report.skipped]
    return torch.stack(flags) if flags else torch.zeros(0, dtype=torch.bool)


def _stacked(parts: list[Tensor], like: Tensor) -> Tensor:
    return torch.stack(parts).double() if parts else torch.zeros_like(like, dtype=torch.float64)
