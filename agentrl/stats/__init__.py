"""Statistics of rollouts with confidence intervals: means, differences and pass rates. Pure functions."""
