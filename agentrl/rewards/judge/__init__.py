"""Reward from a language model that acts as judge."""
