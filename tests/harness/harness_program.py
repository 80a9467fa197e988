"""A harness for tests: `python harness_program.py MODE`. It uses the standard library only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any  # Any: JSON

URL, KEY = os.environ["AGENTRL_BASE_URL"], os.environ["AGENTRL_API_KEY"]
MODEL, INSTRUCTION = os.environ["AGENTRL_MODEL"], os.environ["AGENTRL_INSTRUCTION"]
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}


def ask(messages: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    """Return the model's message."""
    body = {"model": MODEL, "messages": messages, **options}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(f"{URL}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        message: dict[str, Any] = json.load(reply)["choices"][0]["message"]
        return message


def with_tools() -> None:
    """Answer the calls of the model until it makes none."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": INSTRUCTION}]
    while True:
        message = ask(messages, tools=[TOOL])
        messages.append(message)
        if not message.get("tool_calls"):
            print("the answer is", message["content"], flush=True)
            return
        for call in message["tool_calls"]:
            values = json.loads(call["function"]["arguments"])
            result = str(values["a"] + values["b"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def one_turn() -> dict[str, Any]:
    """Ask once."""
    return ask([{"role": "user", "content": INSTRUCTION}])


def threads() -> None:
    """Ask in several threads at the same time."""
    texts = [f"{INSTRUCTION} ({number})" for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for message in pool.map(lambda text: ask([{"role": "user", "content": text}]), texts):
            print(message["content"])


def main(mode: str) -> None:
    """Be a harness of one kind."""
    if mode == "tools":
        with_tools()
    elif mode == "threads":
        threads()
    elif mode == "silent":
        print("nothing to do")
    elif mode == "failing":
        print("no configuration", file=sys.stderr)
        sys.exit(4)
    elif mode == "dies":
        one_turn()
        print(f"cannot continue with {KEY}", file=sys.stderr)
        sys.exit(3)
    elif mode == "hangs":
        one_turn()
        time.sleep(1000)
    elif mode == "insists":
        while True:  # whatever the gateway answers
            try:
                one_turn()
            except urllib.error.HTTPError as error:
                print(error.code, error.read().decode(), flush=True)
    elif mode == "daemon":
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        with_tools()
    else:
        raise SystemExit(f"there is no mode {mode}")


if __name__ == "__main__":
    main(sys.argv[1])
