"""Faster twins of formulas, each tested against the plain one. Nothing here is public."""
