"""The variance gradient scaler."""
