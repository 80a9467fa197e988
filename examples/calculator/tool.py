"""The only tool of the demo: a calculator for one operation per call, so a task needs two calls."""

from __future__ import annotations

import operator
import re

from agentrl.tools.function import tool

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
ONE_OPERATION = re.compile(r"\s*(-?\d{1,9})\s*([-+*])\s*(-?\d{1,9})\s*")


@tool(deterministic=True)
def calculator(expression: str) -> str:
    """Compute one operation.

    Args:
        expression: two integers joined by +, - or *
    """
    match = ONE_OPERATION.fullmatch(expression)
    return str(OPERATIONS[match[2]](int(match[1]), int(match[3]))) if match else "error"
