"""Records, as rollouts of a run folder, the conversations that other programs have through the gateway."""
