"""Benchmarks of risk: predicted tails, and the frontier of limits."""
