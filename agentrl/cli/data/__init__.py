"""`agentrl data check`."""
