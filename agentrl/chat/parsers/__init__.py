"""Parsers of tool calls by name, and a check that a parser fits a chat template."""

from __future__ import annotations

from agentrl.chat.parsers.fit import check_parser
from agentrl.chat.parsers.names import AUTO, tool_parsers

__all__ = ["AUTO", "check_parser", "tool_parsers"]
