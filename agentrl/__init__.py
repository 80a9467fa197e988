"""Agentic multi-turn reinforcement learning for language models that use tools."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from agentrl.version import __version__ as __version__

if TYPE_CHECKING:
    from agentrl.agent_loops.base import AgentLoop
    from agentrl.agent_loops.base import register as register_agent_loop
    from agentrl.api import evaluate, rollout, train
    from agentrl.errors import AgentRLError
    from agentrl.interactions.base import BaseInteraction
    from agentrl.saved.functions import audit_run, compare, readvantage, rescore
    from agentrl.saved.run import Run, load
    from agentrl.store.stored import StoredRollout
    from agentrl.tools.base import BaseTool, InfraError, ToolError, ToolResponse
    from agentrl.tools.function import tool
    from agentrl.trainer.evaluated import Evaluated
    from agentrl.types.rollout import Group, Rollout
    from agentrl.types.task import Task
    from agentrl.types.trajectory import Segment, Trajectory

__all__ = [
    "AgentLoop",
    "AgentRLError",
    "BaseInteraction",
    "BaseTool",
    "Evaluated",
    "Group",
    "InfraError",
    "Rollout",
    "Run",
    "Segment",
    "StoredRollout",
    "Task",
    "ToolError",
    "ToolResponse",
    "Trajectory",
    "audit_run",
    "compare",
    "evaluate",
    "load",
    "readvantage",
    "register_agent_loop",
    "rescore",
    "rollout",
    "tool",
    "train",
]

_MODULES = {
    "agent_loops.base": ("AgentLoop", "register_agent_loop"),
    "api": ("evaluate", "rollout", "train"),
    "types.rollout": ("Group", "Rollout"),
    "errors": ("AgentRLError",),
    "interactions.base": ("BaseInteraction",),
    "saved.functions": ("audit_run", "compare", "readvantage", "rescore"),
    "saved.run": ("Run", "load"),
    "store.stored": ("StoredRollout",),
    "types.task": ("Task",),
    "tools.base": ("BaseTool", "InfraError", "ToolError", "ToolResponse"),
    "tools.function": ("tool",),
    "trainer.evaluated": ("Evaluated",),
    "types.trajectory": ("Segment", "Trajectory"),
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names}


def __dir__() -> list[str]:
    return [*globals(), *__all__]


def __getattr__(name: str) -> object:
    # lazy, so that importing the package does not import torch
    if name in _WHERE:
        return getattr(import_module(f"agentrl.{_WHERE[name]}"), name.removesuffix("_agent_loop"))
    raise AttributeError(f"module 'agentrl' has no attribute '{name}'")
