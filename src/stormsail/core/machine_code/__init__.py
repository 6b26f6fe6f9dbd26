"""What becomes machine code on a CPU: recorded graphs, and C++ of our own."""
