"""The optimizer step as a few compiled passes, for a CPU and for CUDA."""
