"""Benchmarks of risk: predicted tails, the frontier of limits, and limits on stored bars."""
