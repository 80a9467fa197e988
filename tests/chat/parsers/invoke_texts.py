"""Text of calls with a tag for each argument, for the formats of DeepSeek-V3.2 and Muse Glimmer."""

from __future__ import annotations

import json
import re

from parser_contract import Call
from pydantic import JsonValue


def invoke(prefix: str, call: Call, *, marked: bool) -> str:
    """One call; `marked`: a tag says whether the argument is a string."""
    name, arguments = call
    written = []
    for key, value in arguments.items():
        string = f' string="{json.dumps(isinstance(value, str))}"' if marked else ""
        written.append(f'<{prefix}parameter name="{key}"{string}>{as_text(value)}</{prefix}parameter>\n')
    return f'<{prefix}invoke name="{name}">\n{"".join(written)}</{prefix}invoke>'


def as_text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def fits(prefix: str, call: Call) -> bool:
    """A value must not contain a new call, or its own end."""
    end = rf"</{prefix}parameter>\s*(<{prefix}parameter |</{prefix}invoke>|$)"
    return not any(re.search(rf'<{prefix}invoke name="|{end}', as_text(value)) for value in call[1].values())


def marks(prefix: str, section: str) -> tuple[str, ...]:
    return (
        *(f"<{section}>", f"</{section}>\n", f'<{prefix}invoke name="f">\n', f"</{prefix}invoke>", f"<{prefix}invoke"),
        *(f'<{prefix}parameter name="a">', f"</{prefix}parameter>", f"1</{prefix}parameter>\n"),
    )
