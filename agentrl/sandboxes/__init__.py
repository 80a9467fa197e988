"""Sandboxes: isolated places in which tools and rewards run code that a model wrote."""

from agentrl.sandboxes.base import RunResult, Sandbox, SandboxEndedError, SandboxProvider, SandboxUnavailableError

__all__ = ["RunResult", "Sandbox", "SandboxEndedError", "SandboxProvider", "SandboxUnavailableError"]
