"""Formulas of the market: indicators, rolling windows, fills."""
