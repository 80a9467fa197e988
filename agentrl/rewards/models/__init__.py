"""Reward models: classifiers of conversations; the output is the reward."""
