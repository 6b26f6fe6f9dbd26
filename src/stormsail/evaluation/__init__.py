"""Evaluation: backtests, walk-forward validation, significance, calibration, reports.

Public names are imported on first use (PEP 562): `import stormsail.evaluation` loads nothing else.
"""

from typing import TYPE_CHECKING

from stormsail.core.lazy import lazy_exports

if TYPE_CHECKING:
    from stormsail.evaluation.calibration.document import calibration_of
    from stormsail.evaluation.compare.compare import Comparison, compare_results
    from stormsail.evaluation.compare.page import comparison_page
    from stormsail.evaluation.engine.config import BacktestConfig
    from stormsail.evaluation.engine.files import write_backtest
    from stormsail.evaluation.engine.result import Backtest
    from stormsail.evaluation.engine.run import backtest, replay
    from stormsail.evaluation.performance.attribution import attribution_of
    from stormsail.evaluation.performance.capacity import capacity_curve
    from stormsail.evaluation.performance.document import performance_of
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
    "attribution_of",
    "backtest",
    "break_even",
    "calibration_of",
    "capacity_curve",
    "compare_results",
    "comparison_page",
    "cost_sweep",
    "deflated_sharpe",
    "performance_of",
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

_EXPORTS = {
    "calibration.document": ("calibration_of",),
    "compare.compare": ("Comparison", "compare_results"),
    "compare.page": ("comparison_page",),
    "engine.config": ("BacktestConfig",),
    "engine.files": ("write_backtest",),
    "engine.result": ("Backtest",),
    "engine.run": ("backtest", "replay"),
    "performance.attribution": ("attribution_of",),
    "performance.capacity": ("capacity_curve",),
    "performance.document": ("performance_of",),
    "report.page": ("report_page",),
    "robustness.baselines": ("run_baselines",),
    "robustness.costs": ("break_even", "cost_sweep"),
    "robustness.self_tests": ("SelfTest",),
    "robustness.significance": ("significance_of",),
    "robustness.stress": ("stress",),
    "saved": ("read_result", "read_results", "read_run"),
    "stats.overfitting": ("probability_of_overfitting",),
    "stats.sharpe": ("deflated_sharpe", "probabilistic_sharpe"),
    "stats.trials": ("TrialLedger",),
    "walk_forward.config": ("ValidationConfig",),
    "walk_forward.files": ("write_validation",),
    "walk_forward.run": ("Validation", "validate"),
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
