"""Child process that parses turns with the response schema of a tokenizer."""

from __future__ import annotations

import resource
from functools import partial
from typing import Any

from agentrl.chat.parsers.foreign.process import in_fork
from agentrl.concurrency.child_main import Answer, serve

MAX_MEMORY = 4 * 2**30
"""Maximum address space of a fork in bytes: patterns of a schema may repeat a text many times."""
MAX_RESULT = 2**24
"""Maximum characters of a result."""


def prepare() -> Answer:
    """Import transformers' parser once, before the first fork."""
    from transformers.utils.chat_parsing_utils import recursive_parse

    def answer(question: dict[str, Any]) -> dict[str, object]:  # Any: JSON of `TokenizerParser`
        found = in_fork(partial(_read, recursive_parse, question["text"], question["schema"]), question["deadline_s"])
        read = found.get("result")
        return read if isinstance(read, dict) else found

    return answer


def _read(parse: Any, text: str, schema: dict[str, Any]) -> dict[str, object]:  # Any: transformers is not typed here
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    try:
        result = parse(text, schema)
        if len(repr(result)) > MAX_RESULT:
            return {"mistake": "its result is too long"}
        return {"result": result}
    except Exception as error:  # any failure is caused by the schema or by the model's text
        return {"mistake": f"{type(error).__name__}: {error}".splitlines()[0][:200]}


if __name__ == "__main__":
    serve(prepare)
