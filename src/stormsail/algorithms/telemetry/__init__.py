"""What an update reports, by name. `docs/metrics.md` has one row for each metric."""
