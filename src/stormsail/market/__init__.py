"""Bars, features and the simulator. Empty until the data layer arrives."""
