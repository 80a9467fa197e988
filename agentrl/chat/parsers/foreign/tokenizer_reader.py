"""Child process that reads turns as a tokenizer describes them."""

from __future__ import annotations

import json
import resource
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase

from agentrl.chat.parsers.foreign.process import in_fork
from agentrl.concurrency.child_main import Answer, serve
from agentrl.security.json_depth import is_too_deep

MAX_MEMORY = 4 * 2**30
"""Maximum address space of a fork in bytes. It is limited, because the patterns of a description may repeat a text so
many times that the repetitions fill the memory."""
MAX_RESULT = 2**24
"""Maximum number of characters of a result, written as JSON."""
TEMPLATE = "response_template"
_GUARD = "\x00"
"""Text appended to a turn: a call that continues into this text is not closed."""
_LOOSE = ("xml-inline", "kv-lines")
"""Types of content that transformers reads even if the content is truncated. With these types, a call that is not
closed is read as a call, perhaps without all arguments. Truncated JSON cannot be read."""


def read_turn(kind: str, spec: Mapping[str, Any], text: str) -> dict[str, object]:  # Any: JSON of the model's files
    """Return `result` (from `parse_response`) and `cut` (whether the last call is not closed), or only a `mistake`."""
    tokenizer: Any = PreTrainedTokenizerBase()  # Any: its methods differ between versions of transformers
    try:
        if kind == TEMPLATE:
            result = tokenizer.parse_response(text, spec, prefix="")
        else:
            result = tokenizer.parse_response(text, spec)
        written = json.dumps(result)
        if len(written) > MAX_RESULT or is_too_deep(result, written):
            return {"mistake": "its result is too long, or nested too deeply"}
        return {"result": result, "cut": kind == TEMPLATE and _is_cut(tokenizer, spec, text)}
    except Exception as error:  # any failure is caused by the description or by the model's text
        return {"mistake": f"{type(error).__name__}: {error}".partition("\n")[0][:200]}


def _is_cut(tokenizer: Any, spec: Mapping[str, Any], text: str) -> bool:  # Any: see `read_turn`
    loose = {name for name, field in spec["fields"].items() if field.get("content") in _LOOSE}
    if not loose:
        return False
    parser = tokenizer.get_response_parser(spec, prefix="")
    parser.feed(text + _GUARD)
    _, events = parser.finalize()
    return any(event["type"] == "region_close" and event["field"] in loose for event in events)


def answer(question: dict[str, Any]) -> dict[str, object]:  # Any: JSON of `TokenizerParser`
    """Read a turn in a fork; return the result of `read_turn`, or a `mistake` if the fork does not answer."""
    found = in_fork(partial(_read, question["kind"], question["spec"], question["text"]), question["deadline_s"])
    read = found.get("result")
    return read if isinstance(read, dict) else found


def _read(kind: str, spec: Mapping[str, Any], text: str) -> dict[str, object]:  # Any: see `read_turn`
    with suppress(ValueError, OSError):  # the system has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    return read_turn(kind, spec, text)


def prepare() -> Answer:
    """Read a turn once, so that transformers is imported before the first fork."""
    read_turn("response_schema", {"type": "string"}, "")
    return answer


if __name__ == "__main__":
    serve(prepare)
