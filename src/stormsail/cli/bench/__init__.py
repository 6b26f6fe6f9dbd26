"""Verbs of `stormsail bench`."""
