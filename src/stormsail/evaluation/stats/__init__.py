"""Statistics of returns: metrics, Sharpe ratios, overfitting, bootstrap, the trial ledger."""
