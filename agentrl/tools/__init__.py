"""Tools that the model may call."""

from agentrl.tools.base import BaseTool, InfraError, ToolError, ToolResponse
from agentrl.tools.function import function_tool, tool
from agentrl.types.messages import ToolSchema

OpenAIFunctionToolSchema = ToolSchema
"""verl's name for `ToolSchema`."""

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
