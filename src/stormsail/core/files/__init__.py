"""Crash-safe files: atomic writes, artifacts with manifests, checkpoint generations."""
