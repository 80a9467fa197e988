"""`agentrl replay RUN compare`: compare two steps or two runs, with confidence intervals."""
