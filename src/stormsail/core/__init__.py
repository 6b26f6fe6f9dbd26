"""What every layer uses: errors, configuration, random generators, clock, tasks, files."""
