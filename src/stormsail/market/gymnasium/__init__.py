"""The simulator as Gymnasium environments, single and vector."""
