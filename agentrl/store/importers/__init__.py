"""Import of rollouts that other frameworks logged. Logs contain messages and rewards; traces also contain tokens."""
