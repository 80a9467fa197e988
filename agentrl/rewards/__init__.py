"""What a rollout is worth."""
