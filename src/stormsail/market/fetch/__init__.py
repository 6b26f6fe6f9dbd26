"""Bars and funding rates from an exchange into the store."""
