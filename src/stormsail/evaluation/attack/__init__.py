"""Attacks on a trained agent's observations: closed-loop episodes, learned adversary, curve."""
