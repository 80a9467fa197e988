"""Parser of the ReAct format: `Action: name`, `Action Input: {...}` (Yao et al. 2022, arXiv:2210.03629)."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.parsers.json_text import BadJSONError, is_unicode, read_object, write_json
from agentrl.chat.parsers.thinking import split_thinking

# A label at the start of a line, with the markdown that models often write around it:
# "Action:", "**Action:** search", "### Action Input:", "- Thought:"
_LABEL = re.compile(
    r"^[ \t>#*_-]{0,8}(Thought|Action Input|Action|Observation|Final Answer)[ \t*_]{0,4}:[*_]{0,3}",
    re.MULTILINE | re.IGNORECASE,
)
_EXPECTED = 'Write\nAction: tool name\nAction Input: {"argument": "value"}'


class ReactParser:
    """Parser of `Action:` with the following `Action Input:`; the rest of the turn is content.

    - The input must be a JSON object, also for a tool with a single argument. The parser does not know the tools, so
      it cannot assign other text to an argument.
    - `Observation:` and all text after it are dropped, because the model must not write observations. All text after
      `Final Answer:` is the answer.
    - `<think>...</think>` at the start of the turn is thoughts, and actions inside these thoughts are ignored.
      `Thought:` is content.
    - Several actions before the first observation are several calls.
    """

    stop: tuple[str, ...] = ("Observation:",)
    taught_by_prompt = True
    """True: the system prompt explains this format, so the chat template need not write tool calls."""

    def parse(self, text: str) -> ParsedTurn:
        """Parse one turn."""
        thinking, answer = split_thinking(text, call="Action:")
        return replace(_parse(answer), thinking=thinking)


def _parse(text: str) -> ParsedTurn:
    labels = list(_LABEL.finditer(text))
    ends = [following.start() for _, following in pairwise(labels)] + [len(text)]
    contents, calls = [text[: labels[0].start()] if labels else text], list[ParsedCall]()
    action: str | None = None  # an action whose input has not been found yet
    for label, end in zip(labels, ends[: len(labels)], strict=True):
        kind, content = label[1].lower(), text[label.end() : end]
        if action is not None:
            calls.append(_call(action, content if kind == "action input" else None))
        if kind == "thought" or (kind == "action input" and action is None):
            contents.append(text[label.start() : end])
        if kind == "final answer":
            contents.append(text[label.start() :])
        action = content if kind == "action" else None
        if kind in ("final answer", "observation"):
            break
    if action is not None:
        calls.append(_call(action, None))
    return ParsedTurn("".join(contents).strip(), tuple(calls))


def _call(action: str, content: str | None) -> ParsedCall:
    """Return the call of `action`; `content` is the text of its `Action Input:`, None if there is no input."""
    name = action.strip().partition("\n")[0].strip(" \t\r*`'\"")
    name = name if is_unicode(name) else ""
    text = (content or "").strip().strip("`").removeprefix("json").strip()
    if not name:
        error = "Action: names no tool."
    elif not text:
        error = "There is no Action Input:; write {} for a tool without arguments."
    else:
        try:
            return ParsedCall(name, write_json(read_object(text)))
        except BadJSONError as problem:
            error = f"Action Input: must be a JSON object: {problem}."
    return ParsedCall(name, text, f"{error} {_EXPECTED}")
