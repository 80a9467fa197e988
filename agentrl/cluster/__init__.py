"""Processes of a run: one per device, started and watched on this node."""
