"""Agentic multi-turn reinforcement learning for language models that use tools."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrl.api import evaluate, rollout, train

__version__ = "0.1.0"
__all__ = ["evaluate", "rollout", "train"]


def __getattr__(name: str) -> object:
    # torch comes with the first use of these, not with the package
    if name in __all__:
        return getattr(import_module("agentrl.api"), name)
    raise AttributeError(f"module 'agentrl' has no attribute '{name}'")
