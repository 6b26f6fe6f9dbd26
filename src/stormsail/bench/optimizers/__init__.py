"""Benchmarks of the optimizers: step time, continual learning, shrinkage."""
