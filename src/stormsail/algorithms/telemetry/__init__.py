"""Metrics of an update: losses, rollout, risk, schedules."""
