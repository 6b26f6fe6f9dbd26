"""Commands that learn: train, resume."""
