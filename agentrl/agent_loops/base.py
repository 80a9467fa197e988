"""The agent loop: how one attempt at a task goes, turn by turn."""
