"""Search over settings: independent trainings, proposed by TPE and pruned by ASHA (Optuna)."""
