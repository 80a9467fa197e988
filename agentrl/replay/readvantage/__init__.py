"""`agentrl replay RUN readvantage`: recompute the advantages of saved rollouts."""
