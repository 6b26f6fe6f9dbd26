"""Verbs about learning: train, resume."""
