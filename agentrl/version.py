"""The version of agentrl."""

__version__ = "0.1.0"
