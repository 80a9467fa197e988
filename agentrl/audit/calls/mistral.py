"""Parser of the formats of Mistral's tokenizers."""

from __future__ import annotations

import re

from agentrl.audit.calls.json_lists import call_list
from agentrl.audit.calls.json_values import after_blanks, finite_object, first_json
from agentrl.audit.calls.parsed import Call, ParsedTurn, storable
from agentrl.audit.calls.thoughts import first_thoughts

_TAG = "[TOOL_CALLS]"
_WORD = re.compile(r"[^\s\[\]{}]+")


def read_mistral(text: str) -> ParsedTurn:
    """Parse the text after each `[TOOL_CALLS]`: a list of objects, or a name, an optional id, and an object."""
    answer, thoughts = _thoughts_apart(text)
    content, *blocks = answer.split(_TAG)
    calls = list[Call]()
    for block in blocks:
        is_list = block.startswith("[", after_blanks(block, 0))
        found, end = call_list(block) if is_list else _named(block)
        calls += found
        content += block[end:]
    return ParsedTurn(content.strip(), tuple(calls), thoughts)


def read_plain_mistral(text: str) -> ParsedTurn:
    """Separate thoughts from content. Calls are not parsed and stay in the content."""
    content, thoughts = _thoughts_apart(text)
    return ParsedTurn(content.strip(), (), thoughts)


def _thoughts_apart(text: str) -> tuple[str, str]:
    if text.lstrip().startswith("<think>"):
        return first_thoughts(text, _TAG)
    return first_thoughts(text, _TAG, ("[THINK]", "[/THINK]"))


def _named(block: str) -> tuple[list[Call], int]:
    name, start = _head(block)
    value, end = first_json(block, start) if name else (None, 0)
    arguments = finite_object(value)
    if arguments is None:
        return [Call(name, None, block.strip())], len(block)
    return [Call(name, arguments)], end


def _head(block: str) -> tuple[str, int]:
    """Return the name, and the start of the arguments; the name is "" if no valid name precedes an object."""
    name = _WORD.match(block, after_blanks(block, 0))
    if name is None or len(name[0]) > 200:
        return "", 0
    position = after_blanks(block, name.end())
    if block.startswith("[CALL_ID]", position):
        position = after_blanks(block, position + len("[CALL_ID]"))
        number = _WORD.match(block, position)
        position = after_blanks(block, number.end()) if number and len(number[0]) <= 100 else position
    if block.startswith("[ARGS]", position):
        position = after_blanks(block, position + len("[ARGS]"))
    good = block.startswith("{", position) and storable(name[0])
    return (name[0], position) if good else ("", 0)
