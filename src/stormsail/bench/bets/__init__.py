"""Exactly solved bets under a limit, and Return Capping beside them."""
