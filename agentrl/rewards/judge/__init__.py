"""Reward by a language model as judge."""
