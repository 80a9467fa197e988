"""Telemetry: trackers for a run's metrics, and timing."""
