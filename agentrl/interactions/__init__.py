"""Simulated users who answer the model."""
