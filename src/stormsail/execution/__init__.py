"""For real: venue, loop, journal. Empty until live trading arrives."""
