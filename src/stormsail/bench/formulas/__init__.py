"""Benchmarks of the formulas beside plain loops."""
