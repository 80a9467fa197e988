"""The format of Muse Glimmer: messages with a recipient, and a tag for each argument."""

from __future__ import annotations

from collections.abc import Sequence

from invoke_texts import as_text, fits, invoke
from parser_contract import Call, Format, identifiers

PREFIX, SECTION = "atem:", "atem:function_calls"
NEXT = "<|eom|><|start|>assistant"


def write(content: str, calls: Sequence[Call]) -> str:
    messages = [f" to=user<|message|>{content}"] if content else []
    return NEXT.join([*messages, *(f" to={call[0]}<|message|>{block(call)}" for call in calls)])


def block(call: Call) -> str:
    return f"<{SECTION}>\n{invoke(PREFIX, call, marked=False)}\n</{SECTION}>"


def write_in_thoughts(content: str, calls: Sequence[Call]) -> str:
    """Without marks, because they always end the thoughts."""
    return content + "".join(map(block, calls))


def in_format(call: Call) -> bool:
    values = "".join(map(as_text, call[1].values()))
    return fits(PREFIX, call) and not any(mark in values for mark in ("<|eom|>", "<|eot|>", "<|start|>"))


MARKS = (
    " to=self<|message|>",
    " to=f<|message|>",
    " to=user<|message|>",
    "<|message|>",
    "<|eom|>",
    "<|start|>assistant",
)
FORMAT = Format(
    "muse_glimmer",
    write,
    marks=MARKS,
    write_thoughts=f" to=self<|message|>{{}}{NEXT}".format,
    write_in_thoughts=write_in_thoughts,
    fits=in_format,
    keys=identifiers,
    typed=True,
)
