"""In which order: rollout, update, checkpoint. Empty until the learner arrives."""
