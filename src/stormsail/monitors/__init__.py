"""Verdicts on metrics and places to write them down; never actions."""
