"""For real: venue, loop, journal."""
