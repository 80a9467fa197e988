"""`agentrl replay RUN logprobs`: log-probabilities of saved tokens under another checkpoint."""
