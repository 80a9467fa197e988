"""Rollouts: run concurrently, scored, and summarized in metrics."""
