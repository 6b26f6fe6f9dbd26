"""Benchmarks of robustness: attacks on agents, and what robust training costs and gains."""
