"""Registry of tool parsers."""

from __future__ import annotations

from collections.abc import Callable

from agentrl.chat.base import ToolParser
from agentrl.registry import Registry

AUTO = "auto"
"""Name for the format that fits the chat template (`agentrl.chat.parsers.choice`)."""

# An entry is called without arguments: `tool_parsers.get("hermes")()`.
tool_parsers: Registry[Callable[[], ToolParser]] = Registry(
    "tool parser",
    builtin={
        "hermes": "agentrl.chat.parsers.hermes:HermesParser",
        "llama3_json": "agentrl.chat.parsers.llama3_json:Llama3JSONParser",
        "mistral": "agentrl.chat.parsers.mistral:MistralParser",
        "pythonic": "agentrl.chat.parsers.pythonic:PythonicParser",
        "qwen3_coder": "agentrl.chat.parsers.qwen3_coder:Qwen3CoderParser",
        "react": "agentrl.chat.parsers.react:ReactParser",
    },
    families={"sglang/": "agentrl.chat.parsers.sglang:find_sglang_parser"},
)
