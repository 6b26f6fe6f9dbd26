"""What an operator sees of an account, and is told."""
