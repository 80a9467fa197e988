"""Rewards for rollouts."""
