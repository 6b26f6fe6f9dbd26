"""The run around the learner: folder, checkpoint, task, evaluation, records, trial ledger."""
