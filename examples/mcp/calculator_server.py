"""The tool of the calculator task as an MCP server: one operation per call, over stdio.

pip install 'agentrl-train[mcp]'
agentrl train … rollout.multi_turn.tool_config_path=configs/tool_config/mcp.yaml
"""

from __future__ import annotations

import operator
import re
from typing import Annotated

from mcp.server import MCPServer
from pydantic import Field

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
ONE_OPERATION = re.compile(r"\s*(-?\d{1,9})\s*([-+*])\s*(-?\d{1,9})\s*")

server = MCPServer("calculator")


@server.tool(description="Compute one operation.", structured_output=False)
def calculator(expression: Annotated[str, Field(description="two integers joined by +, - or *")]) -> str:
    """Return the result, or "error"."""
    match = ONE_OPERATION.fullmatch(expression)
    return str(OPERATIONS[match[2]](int(match[1]), int(match[3]))) if match else "error"


if __name__ == "__main__":
    server.run()
