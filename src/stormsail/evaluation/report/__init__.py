"""One HTML page about results."""
