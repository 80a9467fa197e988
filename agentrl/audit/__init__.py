"""Audit of saved rollouts: recompute every saved value with code that is independent of the training code."""
