"""Escaping of texts that a model server would turn into control tokens."""

from __future__ import annotations

import re

# <|im_end|>, <｜User｜>, <start_of_turn>, </s>, [/INST]
_CONTROL = re.compile(r"([<\[])(?=[|｜]|/?s>|/?INST\]|/?(?:start|end)_of_turn>|/?(?:bos|eos|pad)>)", re.IGNORECASE)


def escape_control_text(text: str) -> str:
    """Return the text with a backslash inside everything that looks like a control token: `<\\|im_end|>`.

    Null characters become replacement characters.
    """
    return _CONTROL.sub(r"\1\\", text.replace("\0", "\N{REPLACEMENT CHARACTER}"))
