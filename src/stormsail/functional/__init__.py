"""Formulas as pure tensor functions: no weights, no configuration, no I/O, no logging.

For float32 and float64. Half precision belongs inside networks: cast before calling, as a loss in
float16 overflows and one in bfloat16 has two digits. Modules are imported on first use (PEP 562):
`stormsail.functional.risk.cvar`.
"""

from typing import TYPE_CHECKING

from stormsail.core.lazy import lazy_exports

if TYPE_CHECKING:
    from stormsail.functional import (
        advantage,
        categorical,
        distribution,
        perturbation,
        policy,
        population,
        quantile,
        recurrence,
        return_scale,
        returns,
        risk,
        risk_gate,
        statistics,
        twin,
        value_clip,
    )

__all__ = [
    "advantage",
    "categorical",
    "distribution",
    "perturbation",
    "policy",
    "population",
    "quantile",
    "recurrence",
    "return_scale",
    "returns",
    "risk",
    "risk_gate",
    "statistics",
    "twin",
    "value_clip",
]

_MODULES = (
    "advantage",
    "categorical",
    "distribution",
    "perturbation",
    "policy",
    "population",
    "quantile",
    "recurrence",
    "return_scale",
    "returns",
    "risk",
    "risk_gate",
    "statistics",
    "twin",
    "value_clip",
)

__getattr__, __dir__ = lazy_exports(__name__, {}, _MODULES)
