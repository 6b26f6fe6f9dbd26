"""One update of the learner, part by part: rollout, targets, losses, epochs, schedules."""
