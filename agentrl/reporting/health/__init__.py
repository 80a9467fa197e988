"""Health warnings: rules for a run's metrics; each warning names the likely cause."""
