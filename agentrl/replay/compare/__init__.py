"""`agentrl replay RUN compare`: two steps or two runs, with confidence intervals."""
