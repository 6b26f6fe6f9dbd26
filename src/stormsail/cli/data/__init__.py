"""Verbs about data: synth, fetch, import, check."""
