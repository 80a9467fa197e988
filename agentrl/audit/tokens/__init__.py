"""Checks of rendered, sampled and trained tokens."""
