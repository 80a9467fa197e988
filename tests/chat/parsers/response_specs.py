"""Descriptions of turns for transformers' `parse_response`: of the Hermes format, and of one with XML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedTokenizerBase

from agentrl.chat.parsers.foreign.tokenizer import TokenizerParser
from agentrl.chat.parsers.foreign.tokenizer_reader import read_turn

KIND = "response_template" if hasattr(PreTrainedTokenizerBase, "get_response_parser") else "response_schema"
"""The kind that the installed version of transformers reads."""
Spec = Mapping[str, Any]
_CALL_PARTS = {"type": "object", "properties": {"name": {"type": "string"}, "arguments": {}}}


def _schema(function: Spec) -> Spec:
    call = {"type": "object", "properties": {"type": {"const": "function"}, "function": function}}
    properties = {
        "role": {"const": "assistant"},
        "content": {"type": "string", "x-regex": r"^(?:<plan>.*?</plan>)?(.*?)(?:\s*<tool_call>|\Z)"},
        "thinking": {"type": "string", "x-regex": r"^<plan>(.*?)</plan>"},
        "tool_calls": {"type": "array", "x-regex-iterator": r"<tool_call>(.*?)</tool_call>", "items": call},
    }
    return {"type": "object", "properties": properties}


def _template(**tool_calls: object) -> Spec:
    region = {"close_pattern": r"</tool_call>\s*", "repeats": True, **tool_calls}
    fields = {"content": {}, "thinking": {"open": "<plan>", "close": "</plan>"}, "tool_calls": region}
    return {"start_anchor": "assistant\n", "defaults": {"role": "assistant"}, "fields": fields}


_XML_ARGUMENTS = r"<parameter=(?P<key>\w+)>(?P<value>.*?)</parameter>"
_SPECS: Mapping[str, tuple[Spec, Spec]] = {
    "response_schema": (
        _schema({**_CALL_PARTS, "x-parser": "json"}),
        _schema(
            {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "x-regex": r"<function=(\w+)>"},
                    "arguments": {"type": "object", "x-regex-key-value": _XML_ARGUMENTS},
                },
            }
        ),
    ),
    "response_template": (
        _template(
            open_pattern=r"\s*<tool_call>", content="json", transform={"type": "function", "function": "{content}"}
        ),
        _template(
            open_pattern=r"\s*<tool_call>\s*<function=(?P<name>\w+)>",
            content="xml-inline",
            content_args={"tag_pattern": _XML_ARGUMENTS},
            transform={"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        ),
    ),
}
HERMES, XML = _SPECS[KIND]


class ParserHere(TokenizerParser):
    """Reads short turns in this process, because thousands of forks need minutes."""

    def _read(self, text: str) -> Mapping[str, Any]:
        assert self._spec is not None
        return read_turn(self._kind, self._spec, text) if len(text) < 5_000 else super()._read(text)
