"""Child process that reads turns with transformers' `parse_response`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from pydantic import JsonValue
from transformers import PreTrainedTokenizerBase

from agentrl.chat.parsers.child.forks import in_fork
from agentrl.concurrency.child_main import Answer, serve
from agentrl.security.json_depth import is_too_deep

TEMPLATE = "response_template"
_MAX_REASON = 200
_GUARD = "\x00"
"""Text after a turn: a region that it does not end was not closed."""
_LOOSE = ("xml-inline", "kv-lines")
"""Contents of which a part can be read: a call that is not closed may lack arguments. Cut JSON is an error."""


def read_turn(kind: str, spec: Mapping[str, Any], text: str) -> dict[str, object]:  # Any: JSON of the tokenizer
    """Return the `message` in a turn, and whether its last call is not closed (`cut`); or a reason as `error`."""
    tokenizer: Any = PreTrainedTokenizerBase()  # Any: its methods depend on the version of transformers
    try:
        if kind != TEMPLATE:
            return _found(tokenizer.parse_response(text, spec), cut=False)
        message = tokenizer.parse_response(text, spec, prefix="")
        return _found(message, cut=_is_cut(tokenizer, spec, text))
    except Exception as error:  # any failure is caused by the tokenizer's data or the model's text
        return {"error": f"{type(error).__name__}: {error}".partition("\n")[0][:_MAX_REASON]}


def _found(message: JsonValue, *, cut: bool) -> dict[str, object]:
    if is_too_deep(message, json.dumps(message)):
        return {"error": "it is nested too deeply"}
    return {"message": message, "cut": cut}


def _is_cut(tokenizer: Any, spec: Mapping[str, Any], text: str) -> bool:  # Any: see `read_turn`
    loose = {name for name, field in spec["fields"].items() if field.get("content") in _LOOSE}
    if not loose:
        return False
    parser = tokenizer.get_response_parser(spec, prefix="")
    parser.feed(text + _GUARD)
    _, events = parser.finalize()
    return any(event["type"] == "region_close" and event["field"] in loose for event in events)


def answer(question: dict[str, Any]) -> dict[str, object]:  # Any: JSON of `TokenizerParser`
    """Read a turn in a fork."""
    return in_fork(partial(read_turn, question["kind"], question["spec"], question["text"]))


def prepare() -> Answer:
    """Read a turn once, so that transformers is imported before the first fork."""
    read_turn("response_schema", {"type": "string"}, "")
    return answer


if __name__ == "__main__":
    serve(prepare)
