"""Child process that parses long turns with SGLang's detectors. Each turn runs in a fork, killed after a timeout."""

from __future__ import annotations

import json
import os
import select
import signal
from dataclasses import asdict
from typing import Any

from agentrl.chat.parsers.sglang import DEADLINE_S, Detected, detect, detectors, read_tools
from agentrl.concurrency.child_main import Answer, serve
from agentrl.types.messages import ToolSchema


def answer(question: dict[str, Any]) -> dict[str, object]:  # Any: JSON of `SglangParser`
    """Return the result of the detector as a dict; `detected` is None if there is no call."""
    reading, writing = os.pipe()
    if not (fork := os.fork()):
        schemas = [ToolSchema.model_validate(schema) for schema in question["schemas"]]
        found = detect(question["name"], question["text"], read_tools(schemas))
        with os.fdopen(writing, "w") as pipe:
            json.dump(asdict(found) if found else None, pipe)
        os._exit(0)
    os.close(writing)
    try:
        return {"detected": _read(reading)}
    finally:
        os.kill(fork, signal.SIGKILL)
        os.waitpid(fork, 0)


def _read(pipe: int) -> object:
    with os.fdopen(pipe, "rb") as file:
        if not select.select([file], [], [], DEADLINE_S)[0]:
            return asdict(Detected(error=f"reading it took more than {DEADLINE_S:g} seconds"))
        written = file.read()
    return json.loads(written) if written else asdict(Detected(error="reading it ended its process"))


def prepare() -> Answer:
    """Import SGLang once, before the first fork."""
    detectors()
    read_tools([])
    return answer


if __name__ == "__main__":
    serve(prepare)
