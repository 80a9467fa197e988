"""Data types that rollouts and training share: messages, tasks, trajectories, rollouts, samples."""
