"""Files that survive crashes: atomic writes, manifests, artifacts, generations."""
