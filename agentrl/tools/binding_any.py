"""Binds tools of every kind for the toolbox."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

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


def opened_always(tools: Iterable[AnyTool]) -> list[OpensState]:
    """Return what every rollout opens, also if it uses none of the tools."""
    return [state for tool in tools if isinstance(tool, BindsSeveral) for state in tool.opened_always]


def states_of(tools: Mapping[str, BoundTool], further: Iterable[OpensState] = ()) -> list[OpensState]:
    """Return what a rollout with these tools opens, each once.

    Args:
        further: see `opened_always`.
    """
    found = (tool.state for tool in tools.values() if tool.state is not None)
    return list(dict.fromkeys((*found, *further)))
