"""Benchmarks of risk: predicted tails, the frontier of limits, and bets solved exactly."""
