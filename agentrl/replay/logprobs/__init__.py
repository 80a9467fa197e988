"""`agentrl replay RUN logprobs`: saved tokens under another checkpoint."""
