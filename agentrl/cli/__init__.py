"""The `agentrl` command."""
