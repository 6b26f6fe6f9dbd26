"""Alarms over metrics, and files for metrics and events."""
