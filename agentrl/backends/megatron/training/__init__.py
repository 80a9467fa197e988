"""Passes, losses and optimizer of Megatron models."""
