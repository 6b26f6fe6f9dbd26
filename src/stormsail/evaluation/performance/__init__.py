"""Performance: gross to net by costs and legs, exposure, regimes, capacity, folds."""
