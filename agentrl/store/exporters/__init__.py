"""Export of stored rollouts: dialogues for SFT, pairs for preference training, tasks for new rollouts, traces."""
