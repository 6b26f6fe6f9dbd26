"""How good: ledgers, backtests, metrics, and whether a result is luck."""

from stormsail.evaluation.backtest_config import BacktestConfig
from stormsail.evaluation.backtest_result import Backtest
from stormsail.evaluation.backtesting import backtest, replay
from stormsail.evaluation.luck import deflated_sharpe
from stormsail.evaluation.overfitting import probability_of_overfitting
from stormsail.evaluation.validation import Validation, validate
from stormsail.evaluation.validation_config import ValidationConfig

__all__ = [
    "Backtest",
    "BacktestConfig",
    "Validation",
    "ValidationConfig",
    "backtest",
    "deflated_sharpe",
    "probability_of_overfitting",
    "replay",
    "validate",
]
