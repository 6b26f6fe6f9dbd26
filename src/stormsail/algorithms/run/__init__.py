"""A training run on the disk: folder, checkpoints, records, evaluation, tasks, trial ledger."""
