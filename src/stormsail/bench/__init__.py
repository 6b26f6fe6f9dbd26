"""Benchmarks: speed beside peers from the same run, learning on tasks with known answers."""
