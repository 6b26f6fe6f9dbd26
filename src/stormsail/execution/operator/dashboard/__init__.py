"""Dashboard: one page about a running agent, and the kill button behind a token."""
