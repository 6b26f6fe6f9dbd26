"""Metrics of the epochs: losses, probability ratios, KL divergence, gradients."""

import math
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from stormsail.algorithms.ppo import Ppo, Update
from stormsail.algorithms.telemetry.values import Values, largest, mean, share
from stormsail.algorithms.update.adversary import attacked_count
from stormsail.algorithms.update.epochs import Minibatches
from stormsail.algorithms.update.losses import Sums
from stormsail.functional.statistics import percentiles

Held: TypeAlias = nn.Module | list[nn.Parameter]
"""Parameters whose gradients are measured together."""

PRE_CLIP, POST_CLIP = "train/grad_norm_pre_clip", "train/grad_norm_post_clip"

STOP_RULES = ("", "absolute", "consecutive", "fraction")
"""Rules that end the epochs; `train/kl_stop_reason` is the place in this list."""


class Totals(NamedTuple):
    """What all minibatches found together."""

    sums: Sums
    """The largest of what is a maximum."""
    mean: Sums
    """Each of them for one of the samples that were used, float64; NaN without any."""


def summed(minibatches: Minibatches) -> Totals:
    """Return sums and means over all minibatches, those of one type in few calls."""
    columns = minibatches.sums._asdict()
    weight = minibatches.sums.weight.sum()
    single = {name: column for name, column in columns.items() if column.ndim == 1}
    total = {name: column.sum(0) for name, column in columns.items() if name not in single}
    average = {name: share(part, weight) for name, part in total.items()}
    for kind in dict.fromkeys(column.dtype for column in single.values()):
        names = [name for name, column in single.items() if column.dtype == kind]
        row = torch.stack([single[name] for name in names]).sum(1)
        total |= zip(names, row.unbind(), strict=True)
        average |= zip(names, share(row, weight).unbind(), strict=True)
    total["log_ratio_max"] = minibatches.sums.log_ratio_max.max()
    return Totals(Sums(**total), Sums(**average))


def losses(ppo: Ppo, update: Update, totals: Totals) -> Values:
    """Return the mean of every term of the loss over all samples of all epochs."""
    now, average = update.now, totals.mean
    surrogate, imitation = average.policy, average.bc
    penalty = now.kl_beta * average.analytic_kl
    by_critic = average.value_by_critic.unbind()
    values: Values = {
        "train/loss": average.loss,
        "train/policy_loss": surrogate + now.bc_coef * imitation + penalty,
        "train/policy_loss_ppo": surrogate,
        "train/policy_loss_bc": imitation,
        "train/policy_loss_bc_weighted": now.bc_coef * imitation,
        "train/policy_loss_kl_penalty": penalty,
        "train/policy_bc_coef": now.bc_coef,
        "train/policy_bc_vs_ppo_ratio": share((now.bc_coef * imitation).abs(), surrogate.abs()),
        "train/value_loss": average.value,
        "train/entropy_loss": -average.entropy,
        "train/policy_entropy": average.entropy,
    }
    if ppo.agent.spec.critic.kind == "quantile":
        values["train/quantile_crossing_frac"] = average.crossing
    if len(by_critic) == 2:
        values |= {
            "train/twin_critics/critic_1_loss": by_critic[0],
            "train/twin_critics/critic_2_loss": by_critic[1],
            "train/twin_critics/loss_diff": by_critic[0] - by_critic[1],
            "train/twin_critics/value_gap": average.value_gap,
        }
    return values


def ratios(totals: Totals) -> Values:
    """Return statistics of the probability ratios."""
    sums, average = totals
    log_mean, excess = average.log_ratio, average.ratio_excess
    clipped = average.clipped
    return {
        "train/log_ratio_mean": log_mean,
        "train/log_ratio_std": _deviation(average.log_ratio_square, log_mean),
        "train/log_ratio_max_abs": sums.log_ratio_max,
        "train/log_ratio_extreme_fraction": average.extreme,
        "train/log_ratio_nan_count": sums.nan,
        "train/log_ratio_inf_count": sums.inf,
        "train/ratio_mean": 1.0 + excess,
        "train/ratio_std": _deviation(average.ratio_excess_square, excess),
        "train/clip_fraction": clipped,
        "train/clip_active_frac/ratio": clipped,
        "train/clip_active_frac/vf": average.vf_clipped,
        "train/clip_active_frac/quantile": average.huber_linear,
    }


def _deviation(square: Tensor, mean: Tensor) -> Tensor:
    """Return the deviation of a mean and a mean square; rounding may make their gap negative."""
    return (square - mean.square()).clamp(min=0.0).sqrt()


def divergence(ppo: Ppo, update: Update, average: Sums) -> Values:
    """Return the KL divergence of the update and the state of its control."""
    seen = torch.tensor(update.learned.divergence, dtype=torch.float64)
    every = torch.ones_like(seen, dtype=torch.bool)
    middle, high = percentiles(seen, every, levels=(0.5, 0.9)).unbind()
    config, control = ppo.config.kl, ppo.kl
    target = math.nan if config.target_kl is None else config.target_kl
    moving = math.nan if control.average is None else control.average
    return {
        "train/approx_kl": average.kl,
        "train/approx_kl_raw": -average.log_ratio,
        "train/approx_kl_median": middle,
        "train/approx_kl_p90": high,
        "train/approx_kl_max": largest(seen, every),
        "train/approx_kl_ema": moving,
        "train/kl_analytic": average.analytic_kl,
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
    minibatches = learned.minibatches
    taken = len(_taken(minibatches))
    stepped = _stepped(minibatches)
    return {
        "train/epochs": float(learned.epochs),
        "train/minibatches": float(len(minibatches)),
        "train/minibatches_skipped": float(len(minibatches) - taken),
        "train/optimizer_steps": stepped.sum(),
        "train/steps_refused": (~stepped).sum(),
        "train/expected_batch_size": float(config.batch_size * length),
        "train/actual_batch_size": sums.weight.double() / max(taken, 1),
        "train/microbatch_size": float((config.microbatch_size or config.batch_size) * length),
        "train/grad_accum_steps": float(max(minibatches.micro_batches)),
    }


def gradients(ppo: Ppo, update: Update) -> Values:
    """Return norms of gradients: means over the steps that were taken, and the largest."""
    minibatches = update.learned.minibatches
    stepped, watched = _stepped(minibatches), _watched(ppo)
    norms = _norms(ppo, minibatches, [*watched.values()])
    labels = ("train/grad_norm_raw", PRE_CLIP, POST_CLIP, *watched)
    averages = share(torch.where(stepped, norms, 0.0).sum(1), stepped.sum())
    values: Values = dict(zip(labels, averages.unbind(), strict=True))
    for label, row in ((PRE_CLIP, norms[1]), (POST_CLIP, norms[2])):
        values[f"{label}_max"] = largest(row, stepped)
    first, second = (values.get(f"train/critic{n}_grad_norm") for n in (1, 2))
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        values["train/critics_grad_ratio"] = share(first, second)
    return values


def _norms(ppo: Ppo, minibatches: Minibatches, watched: list[Held]) -> Tensor:
    """Return the norms of all gradients raw, before and after the clip, and of parts, [3 + W, M].

    Raw gradient norms of a module's own tensors at each step that was not skipped, each counted
    once. The tensors are found by identity, not by name: sqrt(sum of squares) over what the module
    holds, whatever it is called and however it is nested.
    """
    taken, report = _taken(minibatches), minibatches.gradient
    whole = (report.raw_norm, report.grad_norm_pre_clip, report.grad_norm_post_clip)
    own, order = _rows(report.norms, taken).double(), _order(ppo)
    parts = [own[:, _places(held, order)].square().sum(-1).sqrt() for held in watched]
    return torch.stack([*(_rows(column, taken).double() for column in whole), *parts])


def _order(ppo: Ppo) -> dict[int, int]:
    """Return the place of each parameter in a report, by identity."""
    return {id(tensor): place for place, tensor in enumerate(ppo.pipeline.tensors)}


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


def scaled(ppo: Ppo, norms: Tensor, factors: Tensor) -> Values:
    """Return the norms of the critics' last gradients after the scaler's factors.

    Args:
        ppo: the learner.
        norms: of each tensor's last raw gradient, float64 [P].
        factors: of the scaler, float64 [P].
    """
    order, product = _order(ppo), norms * factors
    return {
        f"train/critic{number}_grad_norm_scaled": product[_places(head, order)]
        .square()
        .sum()
        .sqrt()
        for number, head in enumerate(ppo.agent.network.critic.heads, start=1)
    }


def last_norms(minibatches: Minibatches) -> Tensor:
    """Return the norms of the last raw gradients that were not skipped, float64; NaN without."""
    taken, norms = _taken(minibatches), minibatches.gradient.norms
    if not taken:
        return torch.full_like(norms[0], torch.nan, dtype=torch.float64)
    return norms[taken[-1]].double()


def _taken(minibatches: Minibatches) -> list[int]:
    """Return the places of the minibatches that were not skipped."""
    return [place for place, skipped in enumerate(minibatches.skipped) if not skipped]


def _stepped(minibatches: Minibatches) -> Tensor:
    """Return which of the minibatches that were not skipped led to a step, bool [M]."""
    return _rows(minibatches.gradient.stepped, _taken(minibatches))


def _rows(column: Tensor, taken: list[int]) -> Tensor:
    return column if len(taken) == len(column) else column[taken]
