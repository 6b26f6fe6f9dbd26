"""Layers: dense ones, heads, LSTM and GRU, and the products within them."""
