"""Walk-forward validation: folds, retraining, pooled results, verdict."""
