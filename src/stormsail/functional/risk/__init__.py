"""Risk of a return distribution: CVaR, value at risk, and advantages for the lower tail."""

from stormsail.functional.risk.advantage import (
    budget_advantage,
    budget_trace,
    categorical_budget_advantage,
    categorical_budget_trace,
    categorical_risk_advantage,
    risk_advantage,
    shortfall_increment,
)
from stormsail.functional.risk.limit import (
    account_share,
    calibration_slope,
    floor_share,
    mixing_share,
    pull_to_action,
    shortfall_level,
    shrink_to_mean,
)
from stormsail.functional.risk.tail import (
    ESTIMATORS,
    RANK_TOLERANCE,
    categorical_cvar,
    categorical_value_at_risk,
    cvar,
    empirical_cvar,
    empirical_cvar_error,
    stratified_cvar_error,
    value_at_risk,
    weighted_value_at_risk,
)

__all__ = [
    "ESTIMATORS",
    "RANK_TOLERANCE",
    "account_share",
    "budget_advantage",
    "budget_trace",
    "calibration_slope",
    "categorical_budget_advantage",
    "categorical_budget_trace",
    "categorical_cvar",
    "categorical_risk_advantage",
    "categorical_value_at_risk",
    "cvar",
    "empirical_cvar",
    "empirical_cvar_error",
    "floor_share",
    "mixing_share",
    "pull_to_action",
    "risk_advantage",
    "shortfall_increment",
    "shortfall_level",
    "shrink_to_mean",
    "stratified_cvar_error",
    "value_at_risk",
    "weighted_value_at_risk",
]
