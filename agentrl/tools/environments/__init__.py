"""Environments: objects with the state of one rollout, whose methods are tools."""
