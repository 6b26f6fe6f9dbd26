"""Alarm rules: condition, severity and message of each alarm; all thresholds."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Severity = Literal["warning", "alert", "error"]
"""Check soon; check now; must not happen."""

Metrics = Mapping[str, float]

MEAN_ONLY = 1.0
"""`config/vf_clip_mode` of the mode that holds the mean alone."""

VANISHING = 1e-8
IMBALANCE = 100.0
UNREADY = 50
PERSISTENT = 6
"""Updates in a row, so more than five."""

ROUNDING = 1e-6
"""A spread below this share of the mean is rounding, not a unit that is too small."""

STEADY = 10
"""Updates in a row after which a gradient scaler that gives all the same factor is called idle or
saturated."""

SATURATED = 0.9
"""Share of tensors at the smallest factor."""

IDLE = 0.999
"""Smallest factor that changes nothing."""

LOSSES = ("train/loss", "train/policy_loss", "train/value_loss", "train/entropy_loss")
OUTCOMES = ("single rewards", "n-step sums", "episode returns")
"""Quantity whose tail is watched; `config/cvar_quantity` is the index into this list."""

RELATIVE_SPREAD = "train/ret_std_over_median"
"""Spread of returns over its own running median; `Alarms` adds it to the metrics."""

SATURATION, LARGEST_CELL = "lstm/h_saturated_frac_max", "lstm/c_max_abs_max"
LEAST_HIDDEN, LARGEST_HIDDEN = "lstm/h_rms_min", "lstm/h_rms_max"
"""Worst of all layers of a memory; `Alarms` adds them to the metrics."""

SILENT = 1e-3
SUSTAINED = 3
"""Updates in a row: the state is that of one moment, which may lie just after a reset."""


@dataclass(frozen=True)
class OfOutcomes:
    """A message with a place for `outcomes`: a CVaR has the unit of what it is the tail of."""

    text: str

    def format(self, *, value: float, metrics: Metrics) -> str:
        """Return the message of one update."""
        return self.text.format(value=value, metrics=metrics, outcomes=outcomes(metrics))


@dataclass(frozen=True)
class OfReach:
    """A message about a limit that is out of reach: what was measured decides what it says."""

    inferred: OfOutcomes
    """The multiplier stands at its bound, or the gap does not close."""
    measured: OfOutcomes
    """The most cautious policies there are break the limit."""

    def format(self, *, value: float, metrics: Metrics) -> str:
        """Return the message of one update."""
        chosen = self.measured if "train/cvar_risk_share" in metrics else self.inferred
        return chosen.format(value=value, metrics=metrics)


@dataclass(frozen=True)
class OfSpread:
    """A message with a place for `factor`, which brings a spread of `value` to 1."""

    text: str

    def format(self, *, value: float, metrics: Metrics) -> str:
        """Return the message of one update."""
        return self.text.format(value=value, metrics=metrics, factor=1.0 / value)


def outcomes(metrics: Metrics) -> str:
    """Return the quantity whose tail the metrics are about, in words."""
    place = metrics.get("config/cvar_quantity", math.nan)
    return OUTCOMES[int(place)] if place in range(len(OUTCOMES)) else "outcomes"


@dataclass(frozen=True)
class Rule:
    """One alarm."""

    name: str
    severity: Severity
    metric: str
    """Metric whose value is reported."""
    holds: Callable[[Metrics], bool]
    """Whether the condition is met in one update."""
    message: str | OfOutcomes | OfReach | OfSpread
    """With a place for `value`, and for others as `metrics[name]`."""
    patience: int = 1
    """Updates in a row before it is raised."""
    is_number: bool = False
    """Whether its scalar is the value of the metric while the alarm lasts, instead of 1."""


def _above(metric: str, bound: float) -> Callable[[Metrics], bool]:
    return lambda metrics: metrics.get(metric, math.nan) > bound


def _critic_vanishes(number: int) -> Callable[[Metrics], bool]:
    # NaN where no step was taken: then nothing can be said.
    return lambda metrics: metrics.get(f"train/critic{number}_grad_norm", math.nan) < VANISHING


def _critics_differ(metrics: Metrics) -> bool:
    first = metrics.get("train/critic1_grad_norm", math.nan)
    second = metrics.get("train/critic2_grad_norm", math.nan)
    ratio = metrics.get("train/critics_grad_ratio", math.nan)
    measurable = first > VANISHING and second > VANISHING
    return measurable and (ratio > IMBALANCE or ratio < 1.0 / IMBALANCE)


def _loss_is_bad(metrics: Metrics) -> bool:
    return any(not abs(metrics[name]) <= 1000.0 for name in LOSSES if name in metrics)


def _clip_failed(metrics: Metrics) -> bool:
    bound = metrics.get("config/max_grad_norm", math.nan)
    largest = metrics.get("train/grad_norm_post_clip_max", math.nan)
    return bound > 0.0 and largest > bound * (1.0 + 1e-6)


def _log_ratio_is_bad(metrics: Metrics) -> bool:
    names = ("train/log_ratio_nan_count", "train/log_ratio_inf_count")
    return any(metrics.get(name, 0.0) > 0.0 for name in names)


def _spread_jumped(metrics: Metrics) -> bool:
    ratio = metrics.get(RELATIVE_SPREAD, math.nan)
    return ratio < 0.2 or ratio > 5.0


def _mean_is_off(metrics: Metrics) -> bool:
    """Return whether advantages that were centred by their own mean have another one than 0."""
    divisor, own = "train/advantage_scale", "train/advantages_std_clamped"
    by_their_own = metrics.get(divisor) == metrics.get(own)  # slow moments differ from them
    return by_their_own and abs(metrics.get("train/advantages_norm_mean", 0.0)) > 0.1


def _gain_is_capped(metrics: Metrics) -> bool:
    spread = metrics.get("train/return_stats/std_unfloored", math.nan)
    rounding = ROUNDING * abs(metrics.get("train/ret_mean", math.nan))
    return rounding < spread < metrics.get("config/ret_std_at_cap", math.nan)


def _rate_at_floor(metrics: Metrics) -> bool:
    rate = metrics.get("train/optimizer_lr", math.nan)
    return rate <= metrics.get("train/optimizer_lr_min", math.nan)


def _parts_differ(metrics: Metrics) -> bool:
    whole = metrics.get("train/expected_batch_size", 0.0)
    part = metrics.get("train/microbatch_size", 0.0)
    return part > 0.0 and whole % part != 0.0


def _advantages_flat(metrics: Metrics) -> bool:
    raw = metrics.get("train/advantages_std_raw", math.nan)
    return raw < metrics.get("train/advantages_std_clamped", math.nan)


def _below_resolution(metrics: Metrics) -> bool:
    alpha = metrics.get("config/cvar_alpha", math.nan)
    return alpha < metrics.get("config/cvar_resolution", math.nan)


def _tail_is_coarse(metrics: Metrics) -> bool:
    alpha = metrics.get("config/cvar_alpha", math.nan)
    share = metrics.get("config/cvar_resolution", math.nan)
    return share <= alpha < 2.0 * share


def _weight_shut_out(metrics: Metrics) -> bool:
    wanted = metrics.get("config/cvar_weight", 0.0) > 0.0
    return wanted and metrics.get("train/cvar_penalty_share", math.nan) <= 0.0


def _scaler_acts(metrics: Metrics) -> bool:
    return metrics.get("vgs/warmup_active", math.nan) <= 0.0


def _scaler_saturated(metrics: Metrics) -> bool:
    share = metrics.get("vgs/floor_fraction", math.nan)
    return _scaler_acts(metrics) and share >= SATURATED and not _scaler_idle(metrics)


def _scaler_idle(metrics: Metrics) -> bool:
    return _scaler_acts(metrics) and metrics.get("vgs/factor_min", math.nan) >= IDLE


RULES: tuple[Rule, ...] = (
    Rule(
        "warn/excessive_return_scaling",
        "warning",
        "train/return_stats/unfloored_scale",
        _above("train/return_stats/unfloored_scale", 100.0),
        "returns are scaled by {value:.4g}, above 100: their spread is so small that noise is "
        "amplified; raise `returns.std_floor`, or check the unit of the reward",
    ),
    Rule(
        "warn/ret_std_triggering_scaling",
        "warning",
        "train/return_stats/std_unfloored",
        _above("train/return_stats/unfloored_scale", 100.0),
        "the spread of returns before any floor is {value:.4g}, which scales them by more than 100",
        is_number=True,
    ),
    Rule(
        "warn/value_target_scale_capped",
        "warning",
        "train/return_stats/std_unfloored",
        _gain_is_capped,
        OfSpread(
            "returns have a spread of {value:.2g} in the unit of the reward, below "
            "{metrics[config/ret_std_at_cap]:.2g}, where `returns.value_target_scale_cap` holds "
            "the gain: targets fill only a part of a normalised unit, and critics learn them "
            "coarsely; multiply rewards by about {factor:.1g}, or raise the cap"
        ),
    ),
    Rule(
        "alert/gradient_explosion",
        "alert",
        "train/grad_norm_pre_clip_max",
        _above("train/grad_norm_pre_clip_max", 50.0),
        "a gradient norm before the clip is {value:.4g}, above 50 (healthy: below 10); lower the "
        "learning rate, or look for outliers in rewards and advantages",
    ),
    Rule(
        "alert/advantage_outliers",
        "alert",
        "train/advantages_norm_max_abs",
        _above("train/advantages_norm_max_abs", 20.0),
        "a normalised advantage is {value:.4g}, above 20 (healthy: below 10): one sample decides "
        "the update; look for outliers in rewards, set `ppo.advantage_scale` to slow, or lower "
        "`ppo.learning_rate`; beside a limit a rare loss is meant to be that large",
    ),
    Rule(
        "alert/loss",
        "alert",
        "train/loss",
        _loss_is_bad,
        "a loss is not finite or beyond 1000 in size (total {value:.4g}); lower the learning rate, "
        "or look at the rewards",
    ),
    Rule(
        "alert/steps_refused",
        "alert",
        "train/steps_refused",
        _above("train/steps_refused", 0.0),
        "{value:.0f} steps were refused because a gradient was not finite; the learning rate was "
        "halved for each",
    ),
    Rule(
        "error/post_clip_invariant",
        "error",
        "train/grad_norm_post_clip_max",
        _clip_failed,
        "a gradient norm after the clip is {value:.6g}, above `ppo.max_grad_norm`: something "
        "scales gradients after the clip",
    ),
    Rule(
        "error/decode_encode_mismatch",
        "error",
        "train/return_stats/decode_encode_mismatch",
        lambda metrics: metrics.get("train/return_stats/decode_encode_mismatch", 0.0) != 0.0,
        "return statistics moved by {value:.4g} after targets were encoded: values are decoded "
        "with others than the critics were trained with",
    ),
    Rule(
        "warn/twin_critics_gradient_imbalance",
        "warning",
        "train/critics_grad_ratio",
        _critics_differ,
        "the gradient norm of critic 1 is {value:.4g} times that of critic 2, outside 0.01 to 100; "
        "possible causes: architecture, initialisation, a learning rate that is too high",
    ),
    Rule(
        "warn/twin_critics_persistent_imbalance",
        "warning",
        "train/critics_grad_ratio",
        _critics_differ,
        "the critics' gradient norms have differed by more than a factor of 100 for more than 5 "
        "updates in a row (now {value:.4g}): one critic is stuck",
        patience=PERSISTENT,
    ),
    Rule(
        "warn/critic1_vanishing_gradients",
        "warning",
        "train/critic1_grad_norm",
        _critic_vanishes(1),
        "the gradient norm of critic 1 is {value:.4g}, below 1e-8: it no longer learns",
    ),
    Rule(
        "warn/critic2_vanishing_gradients",
        "warning",
        "train/critic2_grad_norm",
        _critic_vanishes(2),
        "the gradient norm of critic 2 is {value:.4g}, below 1e-8: it no longer learns",
    ),
    Rule(
        "error/log_ratio_nonfinite",
        "error",
        "train/log_ratio_max_abs",
        _log_ratio_is_bad,
        "log ratios are not finite; those samples were treated by `ppo.nonfinite_policy` (largest "
        "finite size {value:.4g})",
    ),
    Rule(
        "error/log_ratio_nan_count",
        "error",
        "train/log_ratio_nan_count",
        _above("train/log_ratio_nan_count", 0.0),
        "{value:.0f} log ratios are NaN",
        is_number=True,
    ),
    Rule(
        "error/log_ratio_inf_count",
        "error",
        "train/log_ratio_inf_count",
        _above("train/log_ratio_inf_count", 0.0),
        "{value:.0f} log ratios are infinite",
        is_number=True,
    ),
    Rule(
        "warn/log_ratio_concerning",
        "warning",
        "train/log_ratio_max_abs",
        _above("train/log_ratio_max_abs", 1.0),
        "a log ratio has the size {value:.4g}, above 1: the policy moved far within one update",
    ),
    Rule(
        "warn/log_ratio_severe_instability",
        "warning",
        "train/log_ratio_max_abs",
        _above("train/log_ratio_max_abs", 10.0),
        "a log ratio has the size {value:.4g}, above 10: the update is unstable; lower the "
        "learning rate or `kl.target_kl`",
    ),
    Rule(
        "warn/explained_variance_low",
        "warning",
        "train/explained_variance",
        lambda metrics: metrics.get("train/explained_variance", math.nan) <= 0.3,
        "the explained variance is {value:.4g}, at most 0.3 for 3 updates in a row: the critics "
        "predict little of the returns",
        patience=3,
    ),
    Rule(
        "warn/ret_std_out_of_range",
        "warning",
        RELATIVE_SPREAD,
        _spread_jumped,
        "the spread of returns is {value:.4g} times its own running median, outside 0.2 to 5: the "
        "task or the policy changed",
    ),
    Rule(
        "warn/optimizer_lr_floor_hit",
        "warning",
        "train/optimizer_lr",
        _rate_at_floor,
        "the learning rate is {value:.4g}, at or below `ppo.optimizer_lr_min`",
    ),
    Rule(
        "warn/empty_rollout_buffer",
        "warning",
        "rollout/samples",
        lambda metrics: metrics.get("rollout/samples", math.nan) <= 0.0,
        "no sample of the rollout has weight ({value:.0f}): there is nothing to learn from",
    ),
    Rule(
        "warn/empty_microbatch_group",
        "warning",
        "train/minibatches_skipped",
        _above("train/minibatches_skipped", 0.0),
        "{value:.0f} minibatches had no sample with weight and were skipped",
    ),
    Rule(
        "warn/microbatch_size_mismatch",
        "warning",
        "train/microbatch_size",
        _parts_differ,
        "a minibatch is no multiple of {value:.0f} samples, so its last micro-batch is smaller; "
        "its gradients are weighted accordingly",
    ),
    Rule(
        "warn/advantages_std_below_floor",
        "warning",
        "train/advantages_std_raw",
        _advantages_flat,
        "the spread of advantages is {value:.4g}, below what can be told from rounding: the policy "
        "learns next to nothing",
    ),
    Rule(
        "warn/normalization_mean_nonzero",
        "warning",
        "train/advantages_norm_mean",
        _mean_is_off,
        "normalised advantages have the mean {value:.4g}, beyond 0.1 in size: they should have 0",
    ),
    Rule(
        "warn/value_targets_outside_support",
        "warning",
        "train/clip_active_frac/norm",
        lambda metrics: (
            "train/v_min" in metrics and metrics.get("train/clip_active_frac/norm", 0.0) > 0.01
        ),
        "a share of {value:.4g} of the targets lies outside the atoms, above 0.01; widen "
        "`critic.v_min` and `critic.v_max`, or raise `critic.v_range_ema_alpha`",
    ),
    Rule(
        "warn/vf_clip_mean_only",
        "warning",
        "config/vf_clip_mode",
        lambda metrics: metrics.get("config/vf_clip_mode", math.nan) == MEAN_ONLY,
        "`value_clip.distributional_vf_clip_mode` is `mean_only`: only the mean of a predicted "
        "distribution is held near the old one, its spread and tail move freely; use "
        "`mean_and_variance` where the tail matters, or `disable`",
    ),
    Rule(
        "warn/hidden_state_saturated",
        "warning",
        SATURATION,
        _above(SATURATION, 0.5),
        "a share of {value:.4g} of the units of a memory layer is beyond 0.95 in size, above 0.5 "
        "for 3 updates in a row (healthy: below 0.2): they pass hardly any gradient; lower the "
        "learning rate, or look at the scale of the observations",
        patience=SUSTAINED,
    ),
    Rule(
        "warn/hidden_state_vanishing",
        "warning",
        LEAST_HIDDEN,
        lambda metrics: metrics.get(LEAST_HIDDEN, math.nan) < SILENT,
        "the root mean square of the hidden state of a memory layer is {value:.4g}, below 0.001 "
        "for 3 updates in a row: the memory says nothing; look at `train/lstm_grad_norm`, or "
        "leave the memory out",
        patience=SUSTAINED,
    ),
    Rule(
        "warn/hidden_state_exploding",
        "warning",
        LARGEST_HIDDEN,
        _above(LARGEST_HIDDEN, 1.0),
        "the root mean square of the hidden state of a memory layer is {value:.4g}, above 1, "
        "which its cells never reach: a learned initial state has left their range; set "
        "`network.learn_initial_state` to false, or lower the learning rate",
    ),
    Rule(
        "warn/cell_state_large",
        "warning",
        LARGEST_CELL,
        _above(LARGEST_CELL, 50.0),
        "a cell state of an LSTM has the size {value:.4g}, above 50 for 3 updates in a row "
        "(healthy: below 20): it counts steps instead of forgetting; shorten the episodes or "
        "`ppo.sequence_length`, or look for a trend in the observations",
        patience=SUSTAINED,
    ),
    Rule(
        "warn/vgs_saturated",
        "warning",
        "vgs/factor_median",
        _scaler_saturated,
        "for 10 updates a share of {metrics[vgs/floor_fraction]:.2f} of all tensors has had the "
        "smallest factor of the gradient scaler ({value:.4g}): that is a lower learning rate and "
        'nothing else; set `vgs.reference = "median"`, lower `vgs.alpha`, or switch it off and '
        "lower `ppo.learning_rate`",
        patience=STEADY,
    ),
    Rule(
        "warn/vgs_idle",
        "warning",
        "vgs/factor_min",
        _scaler_idle,
        "for 10 updates the gradient scaler has changed no step (smallest factor {value:.4g}); "
        "raise `vgs.alpha`, or switch it off",
        patience=STEADY,
    ),
    Rule(
        "warn/cvar_alpha_small",
        "warning",
        "config/cvar_alpha",
        lambda metrics: metrics.get("config/cvar_alpha", math.nan) < 0.01,
        "`risk.cvar_alpha` is {value:.4g}, below 0.01: one outcome in a hundred or fewer decides; "
        "watch `debug/cvar_gradient_norm`, and give it a long `risk.cvar_window`",
    ),
    Rule(
        "warn/cvar_below_resolution",
        "warning",
        "config/cvar_alpha",
        _below_resolution,
        "`risk.cvar_alpha` is {value:.4g}, below the {metrics[config/cvar_resolution]:.4g} that "
        "one quantile stands for: the predicted tail is the lowest quantile and too light; raise "
        "`critic.num_quantiles` to 2 / alpha",
    ),
    Rule(
        "warn/cvar_coarse_tail",
        "warning",
        "config/cvar_alpha",
        _tail_is_coarse,
        "`risk.cvar_alpha` is {value:.4g}, below twice the {metrics[config/cvar_resolution]:.4g} "
        "that one quantile stands for: fewer than two quantiles make the predicted tail, which is "
        "too light by several percent; raise `critic.num_quantiles` to 2 / alpha",
    ),
    Rule(
        "warn/cvar_not_ready",
        "warning",
        "train/cvar_samples",
        lambda metrics: metrics.get("train/cvar_ready", math.nan) <= 0.0,
        "the tail has not acted for 50 updates: {value:.0f} outcomes are too few; lower "
        "`risk.cvar_min_samples`, shorten the episodes, or run more environments",
        patience=UNREADY,
    ),
    Rule(
        "warn/cvar_gate_shut",
        "warning",
        "train/explained_variance",
        _weight_shut_out,
        "`risk.cvar_weight` has not acted for 50 updates: the explained variance is {value:.4g}; "
        "lower `risk.cvar_activation_threshold`, or use the constraint, which needs none",
        patience=UNREADY,
    ),
    Rule(
        "alert/cvar_infeasible",
        "alert",
        "train/cvar_empirical_ema",
        _above("train/cvar_infeasible", 0.0),
        OfReach(
            OfOutcomes(
                "the limit `risk.cvar_limit` {metrics[config/cvar_limit]:.4g} is out of reach: "
                "CVaR of {outcomes} stays at {value:.4g} with the multiplier at "
                "{metrics[train/cvar_lambda]:.4g} of at most "
                "{metrics[config/cvar_lambda_max]:.4g}, and the gap no longer closes; choose a "
                "limit at or below what is reached, or raise `risk.cvar_lambda_max`, or the gains "
                "if the multiplier is far below it"
            ),
            OfOutcomes(
                "the limit `risk.cvar_limit` {metrics[config/cvar_limit]:.4g} is out of reach: "
                "CVaR of {outcomes} is surely below it, at {value:.4g}, after "
                "`risk.cvar_infeasible_updates` updates that learned from risk alone, and so is "
                "that of every action held throughout; choose a limit at or below what is reached"
            ),
        ),
    ),
    Rule(
        "warn/greedy_policy_worse",
        "warning",
        "validation/policy_gap",
        _above("validation/greedy_worse", 0.0),
        "the likeliest actions return {metrics[validation/score_greedy]:.4g}, {value:.4g} less "
        "than sampled ones (p = {metrics[validation/policy_p]:.2g}): the agent is judged, and "
        "backtests trade, by its sampled policy; train longer or lower `entropy.ent_coef` "
        "until the policy has decided, or set `validation.policy` to `sampled`",
    ),
)
"""In the order of the report."""
