"""Metrics of the CVaR control: estimate, limit, multiplier, weight, predicted and realised CVaR."""

import math

from torch import Tensor

from stormsail.algorithms.ppo import Ppo, Update
from stormsail.algorithms.risk.report import SOURCES, RiskReport
from stormsail.algorithms.telemetry.values import Values
from stormsail.functional.statistics import weighted_std

BAND = 1.959963984540054
"""Standard errors on either side of an estimate that hold 95 % of a normal distribution."""

QUANTITIES = ("step", "nstep", "episode_return")
"""Outcomes whose tail may be controlled; `config/cvar_quantity` is the place in this list."""

UNKNOWN = frozenset(
    {
        # before the first outcome, or before enough of them
        "train/cvar_raw",
        "train/cvar_empirical",
        "train/cvar_empirical_low",
        "train/cvar_empirical_high",
        "train/cvar_empirical_ema",
        "train/cvar_value_at_risk",
        # without an episode that begins, or one that ended
        "train/cvar_predicted_at_reset",
        "train/cvar_realised_episode",
        "train/cvar_predicted_minus_realised",
        # without a limit
        "train/cvar_limit_unit",
        "train/cvar_gap",
        "train/cvar_gap_unit",
        "train/cvar_violation",
        "train/cvar_violation_ema",
        "config/cvar_limit",
        "config/cvar_resolution",
        # before the risk critic has learned, or without a limit
        "train/cvar_level",
        "train/cvar_critic_loss",
        "train/cvar_aim",
    }
)
"""Metrics of risk that are NaN where there is nothing to measure."""


def risk(ppo: Ppo, update: Update) -> Values:
    """Return the metrics of the CVaR control; none where it is off."""
    if update.risk is None:
        return {}
    report, limit = update.risk, ppo.config.risk.cvar_limit
    floor = math.nan if limit is None else limit
    tail = report.tail
    values: Values = {
        "train/cvar_samples": float(tail.samples),
        "train/cvar_ready": float(tail.is_ready),
        "train/cvar_raw": tail.raw,
        "train/cvar_empirical": tail.empirical,
        "train/cvar_empirical_low": tail.empirical - BAND * tail.error,
        "train/cvar_empirical_high": tail.empirical + BAND * tail.error,
        "train/cvar_empirical_ema": report.average,
        "train/cvar_value_at_risk": tail.level,
        "train/cvar_unit": report.unit,
        "train/cvar_limit_unit": floor / report.unit,
        "train/cvar_gap": report.gap,
        "train/cvar_gap_unit": report.gap / report.unit,
        "train/cvar_violation": _positive(floor - tail.empirical),
        "train/cvar_violation_ema": _positive(floor - report.average),
        "train/cvar_predicted_at_reset": report.predicted,
        "train/cvar_realised_episode": report.realised,
        "train/cvar_predicted_minus_realised": report.predicted - report.realised,
    }
    return values | _acting(report) | _learned(ppo, report) | _settings(ppo)


def spread(risk: Tensor, weight: Tensor) -> Values:
    """Return the deviation of the risk advantage."""
    return {"train/cvar_advantage_std": weighted_std(risk, weight)}


def _acting(report: RiskReport) -> Values:
    """Return how the control acted on the update."""
    gap = _positive(report.gap)
    values: Values = {
        "train/cvar_lambda": report.multiplier,
        "train/cvar_infeasible": float(report.is_infeasible),
        "train/cvar_penalty_active": float(report.weight > 0.0),
        "train/cvar_penalty_share": report.share,
        "train/cvar_weight_effective": report.weight,
        "train/cvar_term": report.term,
        "train/cvar_loss": -report.weight * report.term,
        "train/cvar_constraint": report.multiplier * (0.0 if math.isnan(gap) else gap),
        "debug/cvar_dual_update_source": float(SOURCES.index(report.source)),
    }
    if report.gradient_norm is not None:
        values["debug/cvar_gradient_norm"] = report.gradient_norm
    return values


def _learned(ppo: Ppo, report: RiskReport) -> Values:
    """Return what the critic of the shortfall learns and aims at; none without one."""
    if ppo.risk is None or ppo.risk.critic is None:
        return {}
    values: Values = {
        "train/cvar_level": report.level,
        "train/cvar_critic_loss": report.loss,
        "train/cvar_aim": report.aim,
    }
    if report.options is not None:
        values["train/cvar_risk_share"] = report.factor
        values["train/cvar_critic_trust"] = report.trust
        values["train/cvar_floor_share"] = report.floor
    return values


def _settings(ppo: Ppo) -> Values:
    config, critic = ppo.config.risk, ppo.agent.spec.critic
    own = ppo.agent.network.critic.weights()
    equal = 1.0 / critic.num_quantiles if critic.kind == "quantile" else math.nan
    return {
        "config/cvar_alpha": config.cvar_alpha,
        "config/cvar_weight": config.cvar_weight if config.cvar_use_penalty else 0.0,
        "config/cvar_limit": math.nan if config.cvar_limit is None else config.cvar_limit,
        "config/cvar_lambda_max": config.cvar_lambda_max,
        "config/cvar_quantity": float(QUANTITIES.index(config.cvar_quantity)),
        "config/cvar_resolution": equal if own is None else own[0],
    }


def _positive(x: float) -> float:
    """Return the part above 0; NaN stays."""
    return x if math.isnan(x) else max(x, 0.0)
