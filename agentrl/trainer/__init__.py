"""Training: the loop, its components, and their construction from a configuration."""
