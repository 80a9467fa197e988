"""Reward models: a classifier of conversations whose output is the reward."""
