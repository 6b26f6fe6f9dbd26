"""Formulas as pure tensor functions: no weights, no configuration, no I/O, no logging."""
