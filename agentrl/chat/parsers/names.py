"""Registry of tool parsers."""

from __future__ import annotations

from collections.abc import Callable

from agentrl.chat.base import ToolParser
from agentrl.registry import Registry

# An entry is called without arguments: `tool_parsers.get("hermes")()`.
tool_parsers: Registry[Callable[[], ToolParser]] = Registry(
    "tool parser",
    builtin={
        "hermes": "agentrl.chat.parsers.hermes:HermesParser",
        "react": "agentrl.chat.parsers.react:ReactParser",
    },
    families={"sglang/": "agentrl.chat.parsers.sglang:find_sglang_parser"},
)
