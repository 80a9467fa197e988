"""Telemetry: where a run's numbers go, and how long things took."""
