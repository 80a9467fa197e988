"""The format of Phi-4-mini: a JSON list between marks."""

from __future__ import annotations

from collections.abc import Sequence

from parser_contract import Call, Format
from parser_formats.granite_format import MARKS, fits, written_list

from agentrl.chat.parsers.marked.json_lists import END


def write(content: str, calls: Sequence[Call]) -> str:
    return content + written_list(calls) + END


FORMAT = Format("phi4", write, marks=MARKS, fits=fits)
