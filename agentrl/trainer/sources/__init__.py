"""Sources of rollout groups: live, streaming and saved."""
