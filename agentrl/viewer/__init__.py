"""A local, read-only web page of a run: its curves, its rollouts, and each of them as a conversation."""
