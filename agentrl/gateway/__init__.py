"""Endpoint through which an unchanged agent program samples from the model of a run, one key per rollout."""
