"""Baselines, cost sweeps, stress scenarios, self-tests and significance of a backtest."""
