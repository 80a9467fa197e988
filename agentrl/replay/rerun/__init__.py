"""`agentrl replay RUN tools` and `from-turn`: re-run saved rollouts."""
