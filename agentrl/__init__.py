"""Agentic multi-turn reinforcement learning for language models that use tools."""

__version__ = "0.1.0"
