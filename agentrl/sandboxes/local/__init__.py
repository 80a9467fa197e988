"""Sandboxes on this machine, started with bubblewrap."""
