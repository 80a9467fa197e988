"""Reward models: a classifier of conversations whose number is the reward."""
