"""Environments. An environment is an object with the state of one rollout; its methods are tools."""
