"""Verbs about judging: backtest, validate, report, compare."""
