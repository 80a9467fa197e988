"""Reward models: classifiers of conversations, whose output is the reward."""
