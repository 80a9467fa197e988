"""Local, read-only web viewer for runs: curves, a table of rollouts, and each rollout as a conversation."""
