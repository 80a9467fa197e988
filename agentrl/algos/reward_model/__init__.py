"""Samples and losses for training reward models."""
