"""Child process that parses long turns with SGLang's detectors. Each turn is parsed in a fork with a timeout."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

from agentrl.chat.parsers.foreign.process import in_fork
from agentrl.chat.parsers.sglang import detect, detectors, read_tools
from agentrl.concurrency.child_main import Answer, serve
from agentrl.types.messages import ToolSchema


def answer(question: dict[str, Any]) -> dict[str, object]:  # Any: JSON of `SglangParser`
    """Return {"result": the detector's result as a dict, or None without a call}, or {"mistake": text}."""
    return in_fork(partial(_detect, question))


def _detect(question: dict[str, Any]) -> dict[str, object] | None:
    schemas = [ToolSchema.model_validate(schema) for schema in question["schemas"]]
    found = detect(question["name"], question["text"], read_tools(schemas))
    return asdict(found) if found else None


def prepare() -> Answer:
    """Import SGLang once, before the first fork."""
    detectors()
    read_tools([])
    return answer


if __name__ == "__main__":
    serve(prepare)
