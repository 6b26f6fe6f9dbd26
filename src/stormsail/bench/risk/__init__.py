"""Benchmarks of risk: predicted tails, exactly solved bets, limits on worlds and stored bars."""
