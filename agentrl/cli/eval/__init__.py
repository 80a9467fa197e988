"""`agentrl eval` of saved rollouts and of existing responses."""
