"""CVaR constraint: outcomes, Lagrange multiplier, risk advantage."""
