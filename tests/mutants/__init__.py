"""Known bugs, planted one at a time: `make mutants`."""
