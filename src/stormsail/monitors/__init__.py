"""Verdicts on metrics, never actions. Empty until the learner arrives."""
