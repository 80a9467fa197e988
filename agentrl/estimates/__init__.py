"""What a few rollouts say of all that could be: means, differences and pass rates, each with its interval. Pure."""
