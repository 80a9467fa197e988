"""Tasksets of the library verifiers as harnesses (docs/other_environments.md)."""

from agentrl.harness.verifiers.taskset import Taskset

__all__ = ["Taskset"]
