"""Records conversations that other programs have through the gateway as rollouts of a run folder."""
