"""Records the conversations of other programs with the gateway, as rollouts in a run folder."""
