"""A harness for whole runs: it answers every call of the model, after pauses of any length."""

# dict() in place of braces: in a file of settings, words in braces are placeholders
# ruff: noqa: C406, C408
from __future__ import annotations

import json
import os
import random
import sys
import time
import urllib.request
from typing import Any  # Any: JSON

URL, KEY = os.environ["AGENTRL_BASE_URL"], os.environ["AGENTRL_API_KEY"]
TOOLS = [
    dict(type="function", function=dict(name=name, description="Look.", parameters=dict(type="object", properties={})))
    for name in ("waits", "blocks")
]


def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the model's message."""
    body = dict(model="any", messages=messages, tools=TOOLS)
    headers = dict([("Content-Type", "application/json"), ("Authorization", "Bearer " + KEY)])
    request = urllib.request.Request(URL + "/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["choices"][0]["message"]


def main() -> None:
    """Answer calls until there are none, at most four times; then some harnesses fail."""
    messages = [dict(role="user", content=os.environ["AGENTRL_INSTRUCTION"])]
    number = 0
    for _ in range(4):
        message = ask(messages)
        messages.append(message)
        for call in message.get("tool_calls") or []:
            time.sleep(random.SystemRandom().random() * 0.02)
            number = len(call["function"]["arguments"]) * 7
            messages.append(dict(role="tool", tool_call_id=call["id"], content=str(number)))
        if not message.get("tool_calls"):
            break
    print("done", len(messages))
    sys.exit(5 if number % 3 == 1 else 0)


if __name__ == "__main__":
    main()
