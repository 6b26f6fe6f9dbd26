"""Evaluation: backtests, walk-forward validation, significance, calibration, reports.

Public names are imported on first use (PEP 562): `import stormsail.evaluation` loads nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stormsail.evaluation.calibration.document import calibration_of
    from stormsail.evaluation.compare.compare import Comparison, compare_results
    from stormsail.evaluation.compare.page import comparison_page
    from stormsail.evaluation.engine.config import BacktestConfig
    from stormsail.evaluation.engine.files import write_backtest
    from stormsail.evaluation.engine.result import Backtest
    from stormsail.evaluation.engine.run import backtest, replay
    from stormsail.evaluation.report.page import report_page
    from stormsail.evaluation.robustness.baselines import run_baselines
    from stormsail.evaluation.robustness.costs import break_even, cost_sweep
    from stormsail.evaluation.robustness.self_tests import SelfTest
    from stormsail.evaluation.robustness.significance import significance_of
    from stormsail.evaluation.robustness.stress import stress
    from stormsail.evaluation.saved import read_result, read_results, read_run
    from stormsail.evaluation.stats.overfitting import probability_of_overfitting
    from stormsail.evaluation.stats.sharpe import deflated_sharpe, probabilistic_sharpe
    from stormsail.evaluation.stats.trials import TrialLedger
    from stormsail.evaluation.walk_forward.config import ValidationConfig
    from stormsail.evaluation.walk_forward.files import write_validation
    from stormsail.evaluation.walk_forward.run import Validation, validate

__all__ = [
    "Backtest",
    "BacktestConfig",
    "Comparison",
    "SelfTest",
    "TrialLedger",
    "Validation",
    "ValidationConfig",
    "backtest",
    "break_even",
    "calibration_of",
    "compare_results",
    "comparison_page",
    "cost_sweep",
    "deflated_sharpe",
    "probabilistic_sharpe",
    "probability_of_overfitting",
    "read_result",
    "read_results",
    "read_run",
    "replay",
    "report_page",
    "run_baselines",
    "significance_of",
    "stress",
    "validate",
    "write_backtest",
    "write_validation",
]

_MODULES = {
    "Backtest": "engine.result",
    "BacktestConfig": "engine.config",
    "Comparison": "compare.compare",
    "SelfTest": "robustness.self_tests",
    "TrialLedger": "stats.trials",
    "Validation": "walk_forward.run",
    "ValidationConfig": "walk_forward.config",
    "backtest": "engine.run",
    "break_even": "robustness.costs",
    "calibration_of": "calibration.document",
    "compare_results": "compare.compare",
    "comparison_page": "compare.page",
    "cost_sweep": "robustness.costs",
    "deflated_sharpe": "stats.sharpe",
    "probabilistic_sharpe": "stats.sharpe",
    "probability_of_overfitting": "stats.overfitting",
    "read_result": "saved",
    "read_results": "saved",
    "read_run": "saved",
    "replay": "engine.run",
    "report_page": "report.page",
    "run_baselines": "robustness.baselines",
    "significance_of": "robustness.significance",
    "stress": "robustness.stress",
    "validate": "walk_forward.run",
    "write_backtest": "engine.files",
    "write_validation": "walk_forward.files",
}


def __getattr__(name: str) -> object:
    """Import a public name from its module."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
