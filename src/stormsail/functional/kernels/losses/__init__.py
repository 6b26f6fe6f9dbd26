"""Losses of critics and policy, and quantiles of what critics predict."""
