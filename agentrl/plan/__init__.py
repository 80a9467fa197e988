"""Predictions before a run starts: memory, time and price, from the model's config.json and the configuration."""
