"""Import of rollouts logged by other frameworks: with messages and rewards; traces also have tokens."""
