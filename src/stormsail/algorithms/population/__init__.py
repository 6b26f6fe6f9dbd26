"""Population-based training: members as run folders, rounds, exploit and explore, engines."""
