"""Rollouts: attempts at tasks, run side by side, scored and counted."""
