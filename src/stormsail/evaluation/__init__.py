"""How good: backtest, validation, report. Empty until they arrive."""
