"""Independent ledgers that check the simulator: exact decimals, and NautilusTrader."""
