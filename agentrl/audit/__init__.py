"""An audit of saved rollouts: every number derived again, by code that shares nothing with what wrote it."""
