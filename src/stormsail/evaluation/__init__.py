"""How good: ledgers, backtests, metrics, and whether a result is luck."""

from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.engine.result import Backtest
from stormsail.evaluation.engine.run import backtest, replay
from stormsail.evaluation.stats.overfitting import probability_of_overfitting
from stormsail.evaluation.stats.sharpe import deflated_sharpe
from stormsail.evaluation.walk_forward.config import ValidationConfig
from stormsail.evaluation.walk_forward.run import Validation, validate

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
