"""The format of DeepSeek-V3.2, as the encoder in the model's repository writes it."""

from __future__ import annotations

from collections.abc import Sequence

from invoke_texts import fits, invoke, marks
from parser_contract import Call, Format, identifiers

PREFIX, SECTION = "｜DSML｜", "｜DSML｜function_calls"


def write(content: str, calls: Sequence[Call]) -> str:
    blocks = "\n".join(invoke(PREFIX, call, marked=True) for call in calls)
    return f"{content}\n\n<{SECTION}>\n{blocks}\n</{SECTION}>"


MARKED = (f'<{PREFIX}parameter name="a" string="true">', f'<{PREFIX}parameter name="b" string="false">')
FORMAT = Format(
    "deepseek_v3.2",
    write,
    marks=(*marks(PREFIX, SECTION), *MARKED),
    write_thoughts="<think>{}</think>".format,
    fits=lambda call: fits(PREFIX, call),
    keys=identifiers,
)
