"""`stormsail bench bets`: limits on the tail in worlds whose best policy is known exactly."""
