r"""Layout of the page "Custom Scalars" of TensorBoard: charts by group, metrics by chart.

A metric is a regular expression, as the page demands: `\d+` stands for the layers of a memory.
Charts of metrics that a run does not have stay empty.
"""

LAYOUT: dict[str, dict[str, tuple[str, ...]]] = {
    "advantages": {
        "before normalisation": (
            "train/advantages_mean_raw",
            "train/advantages_std_raw",
            "train/advantages_std_clamped",
            "train/advantage_scale",
        ),
        "normalised: mean and spread": (
            "train/advantages_norm_mean",
            "train/advantages_norm_std",
        ),
        "normalised: largest": ("train/advantages_norm_max_abs",),
        "alarms": (
            "alert/advantage_outliers",
            "warn/advantages_std_below_floor",
            "warn/normalization_mean_nonzero",
        ),
    },
    "return scale": {
        "mean and spread": ("train/ret_mean", "train/ret_std", "train/return_stats/std_unfloored"),
        "gain": ("train/value_target_scale",),
        "share of targets at the end of their range": ("train/clip_active_frac/norm",),
        "alarms": (
            "warn/excessive_return_scaling",
            "warn/ret_std_out_of_range",
            "error/decode_encode_mismatch",
        ),
    },
    "gradient health": {
        "norms": ("train/grad_norm_raw", "train/grad_norm_pre_clip", "train/grad_norm_post_clip"),
        "largest of an update": ("train/grad_norm_pre_clip_max", "train/grad_norm_post_clip_max"),
        "log ratio": ("train/log_ratio_max_abs", "train/log_ratio_std", "train/ratio_std"),
        "alarms": (
            "alert/gradient_explosion",
            "alert/steps_refused",
            "error/post_clip_invariant",
            "error/log_ratio_nonfinite",
            "warn/log_ratio_severe_instability",
        ),
    },
    "losses": {
        "total": ("train/loss",),
        "policy": (
            "train/policy_loss",
            "train/policy_loss_ppo",
            "train/policy_loss_bc_weighted",
            "train/policy_loss_kl_penalty",
        ),
        "value": ("train/value_loss",),
        "entropy": ("train/policy_entropy", "train/policy_entropy_raw"),
        "explained variance": ("train/explained_variance", "train/ev/mean_grouped"),
        "alarms": ("alert/loss", "warn/explained_variance_low"),
    },
    "twin critics": {
        "losses": (
            "train/twin_critics/critic_1_loss",
            "train/twin_critics/critic_2_loss",
            "train/twin_critics/loss_diff",
        ),
        "gap of values": ("train/twin_critics/value_gap",),
        "gradient norms": ("train/critic1_grad_norm", "train/critic2_grad_norm"),
        "ratio of gradient norms": ("train/critics_grad_ratio",),
        "alarms": (
            "warn/twin_critics_gradient_imbalance",
            "warn/twin_critics_persistent_imbalance",
            "warn/critic1_vanishing_gradients",
            "warn/critic2_vanishing_gradients",
        ),
    },
    "VGS": {
        "normalised variance": ("vgs/normalized_variance",),
        "factor and its effect": ("vgs/scaling_factor", "vgs/effect_on_update"),
        "share of noise": ("vgs/noise_fraction",),
        "variance of gradients": (
            "vgs/stochastic_var_p10",
            "vgs/stochastic_var_p50",
            "vgs/stochastic_var_p90",
        ),
    },
    "memory": {
        "hidden state": (r"lstm/h_norm_layer\d+", r"lstm/h_std_layer\d+"),
        "saturated units": (r"lstm/h_saturated_frac_layer\d+",),
        "largest cell state": (r"lstm/c_max_abs_layer\d+",),
        "around resets": ("lstm/h_norm_pre_reset", "lstm/h_norm_post_reset"),
        "gradient norms": (r"train/lstm_grad_norm/.*",),
        "alarms": (
            "warn/hidden_state_saturated",
            "warn/hidden_state_vanishing",
            "warn/hidden_state_exploding",
            "warn/cell_state_large",
        ),
    },
    "CVaR": {
        "estimate and limit": (
            "train/cvar_empirical",
            "train/cvar_empirical_low",
            "train/cvar_empirical_high",
            "train/cvar_empirical_ema",
            "train/cvar_aim",
            "config/cvar_limit",
        ),
        "multiplier and weight": ("train/cvar_lambda", "train/cvar_weight_effective"),
        "share of risk": ("train/cvar_risk_share",),
        "level and value at risk": ("train/cvar_level", "train/cvar_value_at_risk"),
        "loss of the risk critic": ("train/cvar_critic_loss",),
        "predicted and realised": (
            "train/cvar_predicted_at_reset",
            "train/cvar_realised_episode",
        ),
        "alarms": (
            "alert/cvar_infeasible",
            "warn/cvar_not_ready",
            "warn/cvar_gate_shut",
            "warn/cvar_below_resolution",
        ),
    },
}
"""Tags by title of the chart, by group."""
