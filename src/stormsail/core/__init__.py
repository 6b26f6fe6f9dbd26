"""Words of the project: errors, configuration, generators, clock, artifacts."""
