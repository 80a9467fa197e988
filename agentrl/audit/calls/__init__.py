"""Independent parsers of tool calls, written from the formats' descriptions. Each splits a turn into text and calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from agentrl.audit.calls.deepseek_dsml import read_deepseek_dsml
from agentrl.audit.calls.gemma4 import read_gemma4, read_plain_gemma4
from agentrl.audit.calls.glm import read_glm
from agentrl.audit.calls.gpt_oss import read_gpt_oss, read_plain_gpt_oss
from agentrl.audit.calls.hermes import read_hermes
from agentrl.audit.calls.json_lists import LIST_MARKS, read_json_lists
from agentrl.audit.calls.llama3_json import read_llama3_json
from agentrl.audit.calls.marked import MARKS, read_marked
from agentrl.audit.calls.mistral import read_mistral, read_plain_mistral
from agentrl.audit.calls.muse_glimmer import read_muse_glimmer, read_plain_muse_glimmer
from agentrl.audit.calls.parsed import Call, ParsedTurn
from agentrl.audit.calls.pythonic import read_pythonic
from agentrl.audit.calls.qwen3_coder import read_qwen3_coder
from agentrl.audit.calls.react import read_react
from agentrl.audit.calls.thoughts import thoughts_apart, told_apart
from agentrl.audit.reading.run_info import Json

__all__ = [
    "PLAIN_READERS",
    "READERS",
    "Call",
    "ParsedTurn",
    "read_hermes",
    "read_react",
    "thoughts_apart",
    "told_apart",
]


def _without_tools(read: Callable[[str], ParsedTurn]) -> Callable[[str, Sequence[Json]], ParsedTurn]:
    return lambda text, _: read(text)


READERS: Mapping[str, Callable[[str, Sequence[Json]], ParsedTurn]] = {
    **{name: _without_tools(partial(read_marked, marks=marks)) for name, marks in MARKS.items()},
    **{name: _without_tools(partial(read_json_lists, marks=marks)) for name, marks in LIST_MARKS.items()},
    "deepseek_v3.2": read_deepseek_dsml,
    "gemma4": _without_tools(read_gemma4),
    "glm": read_glm,
    "gpt_oss": _without_tools(read_gpt_oss),
    "hermes": _without_tools(read_hermes),
    "llama3_json": _without_tools(read_llama3_json),
    "mistral": _without_tools(read_mistral),
    "muse_glimmer": read_muse_glimmer,
    "pythonic": _without_tools(read_pythonic),
    "qwen3_coder": read_qwen3_coder,
    "react": _without_tools(read_react),
}
"""Format -> function that parses a turn, given the turn's text and the saved schemas of the tools."""

PLAIN_READERS: Mapping[str, Callable[[str], ParsedTurn]] = {
    "gemma4": read_plain_gemma4,
    "gpt_oss": read_plain_gpt_oss,
    "mistral": read_plain_mistral,
    "muse_glimmer": read_plain_muse_glimmer,
}
"""Format with its own marks around thoughts -> parser that separates only thoughts and leaves calls in the content."""
