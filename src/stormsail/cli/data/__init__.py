"""Commands about data: synth, fetch, import, check."""
