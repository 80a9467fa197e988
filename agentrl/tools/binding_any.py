"""Binds tools of every kind for the toolbox."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from agentrl.concurrency import Offload
from agentrl.tools.base import BaseTool
from agentrl.tools.binding import BindsItself, BindsSeveral, BoundFunction, BoundTool, OpensState
from agentrl.tools.class_tool import BoundClass
from agentrl.tools.function import FunctionTool, as_tool

AnyTool = BaseTool | FunctionTool | BindsItself | BindsSeveral | Callable[..., object]


def bind(tool: AnyTool, deadline_s: float, offload: Offload) -> Sequence[BoundTool]:
    """Return the bound tools of `tool`; `deadline_s` is the run's timeout of a call."""
    if isinstance(tool, BindsSeveral):
        return tool.bound(deadline_s, offload)
    if isinstance(tool, BindsItself):
        return [tool.bound(deadline_s, offload)]
    if isinstance(tool, BaseTool):
        return [BoundClass(tool, deadline_s, offload)]
    return [BoundFunction(tool if isinstance(tool, FunctionTool) else as_tool(tool), deadline_s, offload)]


def states_of(tools: Mapping[str, BoundTool]) -> list[OpensState]:
    """Return what the tools share within a rollout, each once."""
    return list(dict.fromkeys(tool.state for tool in tools.values() if tool.state is not None))
