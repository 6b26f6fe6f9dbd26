"""Commands that judge: backtest, attack, validate, report, compare."""
