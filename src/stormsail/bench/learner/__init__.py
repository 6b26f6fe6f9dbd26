"""Benchmarks of the learner: reference tasks, known markets, speed, drift."""
