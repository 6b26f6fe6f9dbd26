"""Commands to begin with: init, configs, show."""
