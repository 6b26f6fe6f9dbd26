"""The CVaR constraint: outcomes, multiplier, risk advantage."""
