"""`agentrl gateway`: serve a model to other programs, and record their conversations as rollouts."""
