"""Whether every part of a run with all parts on changed what was learned, from its metrics.

A part that is switched on and does nothing looks like one that works: the run trains, its metrics
are finite, its files are whole. So each part has a number here that its effect must reach.
"""

from collections.abc import Callable, Mapping, Sequence

import pyarrow.parquet as pq

Columns = Mapping[str, Sequence[float]]


def columns(run) -> Columns:
    """Return the metrics of a run's folder, one value for each update."""
    return pq.read_table(run / "metrics.parquet").to_pydict()


def share(flags) -> float:
    """Return the share of updates in which something holds."""
    flags = list(flags)
    return sum(flags) / len(flags)


def relative(table: Columns, part: str, whole: str) -> list[float]:
    """Return the size of a term over that of another, update by update; 0 where that is 0."""
    return [abs(a) / abs(b) if b else 0.0 for a, b in zip(table[part], table[whole], strict=True)]


def after_warm_up(table: Columns) -> list[float]:
    """Return the scaler's mean factors of the updates in which it acts from begin to end."""
    warm = table["vgs/warmup_active"]
    return [f for f, w, was in zip(table["vgs/scaling_factor"][1:], warm[1:], warm, strict=False)
            if not w and not was]  # fmt: skip


def _clipped_gradient(table: Columns, config) -> float:
    return share(norm > config.ppo.max_grad_norm for norm in table["train/grad_norm_pre_clip_max"])


def _stopped(table: Columns, config) -> float:
    """Return the updates that ended early, of those that really looked at fewer minibatches."""
    whole = max(table["train/minibatches"])
    pairs = zip(table["train/kl_early_stop"], table["train/minibatches"], strict=True)
    return sum(stop == 1.0 and looked < whole for stop, looked in pairs)


def _decayed(table: Columns, config) -> float:
    """Return the share of its start that the coefficient lost after a plateau was detected."""
    started = table["train/entropy_decay_start_update"][-1]
    if started < config.entropy.ent_coef_plateau_min_updates:
        return 0.0
    return 1.0 - table["train/ent_coef_nominal"][-1] / config.entropy.ent_coef


def _popart(table: Columns, config) -> float:
    """Return by how much the unit of the critics changed; 0 if a prediction changed with it."""
    if max(table["train/return_stats/decode_encode_mismatch"]) != 0.0:
        return 0.0
    spread = table["train/ret_std"]
    return max(spread) / min(spread) - 1.0


def _microbatches(table: Columns, config) -> float:
    return min(table["train/grad_accum_steps"])


def _between(table: Columns, config) -> float:
    """Return the share of updates in which the scaler damps, and is not at its least factor.

    0 where all factors are within 0.02: that is another learning rate and measures nothing.
    """
    floor, factors = config.vgs.min_scaling_factor, after_warm_up(table)
    if max(factors) - min(factors) < 0.02:
        return 0.0
    return share(floor + 0.01 < factor < 0.995 for factor in factors)


def _risk_pull(table: Columns, config) -> float:
    """Return the largest length of the risk term's gradient, in those of the whole gradient."""
    return max(relative(table, "debug/cvar_gradient_norm", "train/grad_norm_raw"))


def _entropy_lost(table: Columns, config) -> float:
    """Return how far the policy went from the uniform one it began with, in nats."""
    return max(table["train/policy_entropy"]) - table["train/policy_entropy"][-1]


def _attacked(table: Columns, config) -> float:
    """Return the largest robust KL term of the loss; 0 if little was forged at the end."""
    if not max(table["sa_ppo/avg_perturbation_norm"][-5:]) > 0.5 * config.adversary.epsilon:
        return 0.0
    return max(table["sa_ppo/robust_kl_penalty"])


EFFECTS: dict[str, tuple[float, Callable[[Columns, object], float]]] = {
    "ratio clip: largest share of samples": (
        0.02, lambda table, _: max(table["train/clip_fraction"])),
    "KL penalty: share of updates where it is a thousandth of the policy loss": (
        0.25, lambda table, _: share(
            x >= 1e-3 for x in relative(table, "train/policy_loss_kl_penalty", "train/policy_loss")
        )),
    "early stop: updates": (1, _stopped),
    "gradient clip: share of updates with a step beyond the bound": (0.2, _clipped_gradient),
    "VGS: share of updates after the warm-up between floor and 1": (0.5, _between),
    "value clip: largest share of losses": (
        0.01, lambda table, _: max(table["train/clip_active_frac/vf"])),
    "entropy plateau: share of the coefficient that decayed": (0.1, _decayed),
    "AWR: largest size relative to the policy loss": (
        0.05, lambda table, _: max(
            relative(table, "train/policy_loss_bc_weighted", "train/policy_loss"))),
    "CVaR constraint: largest multiplier": (0.05, lambda table, _: max(table["train/cvar_lambda"])),
    "CVaR weight: largest share of the weight that acts": (
        1.0, lambda table, config:
            max(table["train/cvar_weight_effective"]) / config.risk.cvar_weight),
    "CVaR share: largest share of the risk advantage": (
        0.05, lambda table, _: max(table["train/cvar_risk_share"])),
    "CVaR gradient: largest length relative to the whole": (0.01, _risk_pull),
    "micro-batches: of each minibatch": (2, _microbatches),
    "PopArt: relative change of the unit": (0.1, _popart),
    "adversary: largest penalty": (1e-5, _attacked),
    "policy: nats of entropy lost": (0.1, _entropy_lost),
}  # fmt: skip
"""Least effect of each part, and where it is read."""


def parts(config) -> dict[str, tuple[float, Callable[[Columns, object], float]]]:
    """Return what a configuration has of them: a fixed weight or values of all actions, attacks."""
    other = "CVaR share" if config.risk.cvar_weight else "CVaR weight"
    absent = (other,) if config.adversary.acts else (other, "adversary")
    return {name: part for name, part in EFFECTS.items() if not name.startswith(absent)}


def effects(table: Columns, config) -> dict[str, float]:
    """Return the effect of each part."""
    return {name: float(measure(table, config)) for name, (_, measure) in parts(config).items()}


def idle(table: Columns, config) -> list[str]:
    """Return the parts whose effect is too small, with it and with what it must reach."""
    found = effects(table, config)
    short = {name: EFFECTS[name][0] for name in found if not found[name] >= EFFECTS[name][0]}
    return [f"{name}: {found[name]:.3g} of {least:g}" for name, least in short.items()]
