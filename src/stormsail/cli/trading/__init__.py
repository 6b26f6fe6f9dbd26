"""Verbs of trading: paper, live, status, stop, rearm, replay, trim."""
