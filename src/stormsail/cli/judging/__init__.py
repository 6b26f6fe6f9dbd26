"""Commands that judge: backtest, validate, report, compare."""
