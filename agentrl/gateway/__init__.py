"""Endpoint through which an unchanged agent program samples from a run's model; each rollout has its own key."""
