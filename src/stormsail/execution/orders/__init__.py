"""Orders of an account on their way: sized, checked, sent, protected, and taken back."""
