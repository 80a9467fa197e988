"""Binds tools of all kinds for the toolbox: functions, classes, and objects that bind themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from agentrl.concurrency import Offload
from agentrl.errors import DataError, suggestion
from agentrl.tools.base import BaseTool
from agentrl.tools.binding import BindsItself, BindsSeveral, BoundFunction, BoundTool, OpensState
from agentrl.tools.class_tool import BoundClass
from agentrl.tools.function import FunctionTool, as_tool
from agentrl.types.task import AS_CONFIGURED, ToolOptions

AnyTool = BaseTool | FunctionTool | BindsItself | BindsSeveral | Callable[..., object]


def bind(tool: AnyTool, deadline_s: float, offload: Offload) -> Sequence[BoundTool]:
    """Return the bound tools of `tool`; `deadline_s` is the run's timeout per call."""
    if isinstance(tool, BindsSeveral):
        return tool.bound(deadline_s, offload)
    if isinstance(tool, BindsItself):
        return [tool.bound(deadline_s, offload)]
    if isinstance(tool, BaseTool):
        return [BoundClass(tool, deadline_s, offload)]
    return [BoundFunction(tool if isinstance(tool, FunctionTool) else as_tool(tool), deadline_s, offload)]


def opened_always(tools: Iterable[AnyTool]) -> list[OpensState]:
    """Return the states that every rollout opens, even a rollout that uses none of the tools."""
    return [state for tool in tools if isinstance(tool, BindsSeveral) for state in tool.opened_always]


def states_of(tools: Mapping[str, BoundTool], further: Iterable[OpensState] = ()) -> list[OpensState]:
    """Return the states that a rollout with these tools opens, without duplicates.

    Args:
        further: more states to open; see `opened_always`.
    """
    found = (tool.state for tool in tools.values() if tool.state is not None)
    return list(dict.fromkeys((*found, *further)))


def selected_of(tools: Mapping[str, BoundTool], options: ToolOptions) -> dict[str, BoundTool]:
    """Return the tools of a row, with the row's timeout if it has one.

    Raises:
        DataError: the row selects an unknown tool.
    """
    if options is AS_CONFIGURED:
        return dict(tools)
    names = tools if options.available_tools is None else options.available_tools
    for name in names:
        if name not in tools:
            raise DataError(f"the row selects an unknown tool '{name}': {suggestion(name, tools)}")
    return {name: tools[name].within(options.timeout) for name in names}
