"""Results side by side, and whether they may be compared."""
