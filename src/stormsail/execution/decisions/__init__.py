"""From a closed bar to the order: window of bars, decision, account, tail limits."""
