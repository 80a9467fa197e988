"""Checks of tokens: rendered, sampled and trained ones."""
