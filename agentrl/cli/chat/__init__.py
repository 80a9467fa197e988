"""`agentrl chat`."""
