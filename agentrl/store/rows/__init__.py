"""Rollouts of a store as rows of files for others: dialogues to imitate, pairs to prefer, tasks to roll out."""
