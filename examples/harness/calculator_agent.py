"""A harness in plain Python: it asks the model, runs the model's calculator calls, and stops at a turn without calls.

The program imports nothing from agentrl. The environment variables OPENAI_BASE_URL and OPENAI_API_KEY contain the
address of the service and its key. The first argument is the task.
"""

from __future__ import annotations

import json
import operator
import os
import re
import sys
import urllib.request

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
ONE_OPERATION = re.compile(r"\s*(-?\d{1,9})\s*([-+*])\s*(-?\d{1,9})\s*")
EXPRESSION = {"type": "string", "description": "two integers joined by +, - or *"}
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Compute one operation.",
        "parameters": {"type": "object", "properties": {"expression": EXPRESSION}, "required": ["expression"]},
    },
}


def ask(messages):
    """Return the model's message."""
    body = {"model": "policy", "messages": messages, "tools": [CALCULATOR]}
    request = urllib.request.Request(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    request.add_header("Authorization", f"Bearer {os.environ['OPENAI_API_KEY']}")
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["choices"][0]["message"]


def calculate(arguments):
    """Run one tool call of the model."""
    try:
        match = ONE_OPERATION.fullmatch(json.loads(arguments)["expression"])
    except (ValueError, TypeError, KeyError):
        match = None
    return str(OPERATIONS[match[2]](int(match[1]), int(match[3]))) if match else "error"


def main(task):
    """Work on the task until the model calls no tool."""
    messages = [{"role": "user", "content": task}]
    while calls := (message := ask(messages)).get("tool_calls"):
        messages.append(message)
        for call in calls:
            result = calculate(call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    print(message["content"])


if __name__ == "__main__":
    main(sys.argv[1])
