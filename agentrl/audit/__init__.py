"""Audit of saved rollouts: recompute saved values with code that is independent of the training code."""
