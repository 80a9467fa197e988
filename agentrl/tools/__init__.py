"""Tools the model may call."""

from agentrl.messages import ToolSchema
from agentrl.tools.base import BaseTool, InfraError, ToolError, ToolResponse
from agentrl.tools.function import function_tool, tool

OpenAIFunctionToolSchema = ToolSchema
"""The name that users of verl know."""

__all__ = [
    "BaseTool",
    "InfraError",
    "OpenAIFunctionToolSchema",
    "ToolError",
    "ToolResponse",
    "ToolSchema",
    "function_tool",
    "tool",
]
