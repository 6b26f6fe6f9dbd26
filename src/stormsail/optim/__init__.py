"""Optimizers, one a file. Empty until they arrive."""
