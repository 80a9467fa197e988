"""Runs rollouts concurrently, scores them, and computes their metrics."""
