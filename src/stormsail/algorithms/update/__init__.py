"""Parts of a PPO update: rollout, estimates, return scale, losses, epochs, schedules."""
