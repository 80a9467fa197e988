"""`agentrl replay RUN rescore`: score saved rollouts with another reward."""
