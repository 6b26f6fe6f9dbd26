"""Verbs of the command line: parse, call, print."""
