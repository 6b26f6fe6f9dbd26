"""Formulas of the optimizers: utility gate, gradient noise."""
