"""Import of rollouts logged by other frameworks: with messages and rewards, without tokens."""
