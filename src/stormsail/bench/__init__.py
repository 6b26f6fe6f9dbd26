"""Speed as a ratio: every figure stands beside a peer or a plain reference from the same run."""
