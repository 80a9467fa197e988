"""Training runs on several devices, one process each."""
