"""The parser `tokenizer`, with a description of the Hermes format."""

from __future__ import annotations

import json
from dataclasses import replace

from parser_contract import Call
from parser_formats import hermes_format
from response_specs import HERMES, KIND, ParserHere


def fits(call: Call) -> bool:
    return "tool_call>" not in json.dumps(call)


FORMAT = replace(hermes_format.FORMAT, name="tokenizer", fits=fits, make=lambda: ParserHere(KIND, HERMES))
