"""The user's reward functions: called directly, in batches, in processes or with rate limits."""
