"""Benchmarks of the market: simulator and features beside other libraries."""
