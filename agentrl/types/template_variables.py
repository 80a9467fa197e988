"""Variables of the chat template that a row sets, such as `enable_thinking`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from pydantic import JsonValue

from agentrl.errors import DataError

COLUMN = "chat_template_kwargs"
"""Name of the column with the variables, in a row or in its `extra_info`. TRL uses the same name."""
NONE: Mapping[str, JsonValue] = MappingProxyType({})
RESERVED = frozenset(
    {
        *("conversation", "messages", "tools", "documents", "chat_template", "add_generation_prompt"),
        *("continue_final_message", "tokenize", "padding", "truncation", "max_length", "return_tensors"),
        *("return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs", "self"),
    }
)
"""Arguments of transformers' `apply_chat_template`, which a row must not set."""


def read_template_variables(value: JsonValue) -> Mapping[str, JsonValue]:
    """Read the variables in a row. A null value counts as not given: Parquet stores null where a row has no value.

    Raises:
        DataError: `value` is not an object, a name in it is reserved or invalid, or a variable is neither text, number,
            true nor false. The message names the field.
    """
    if value is None:
        return NONE
    if not isinstance(value, dict):
        raise DataError(f"field '{COLUMN}': expected an object such as {{enable_thinking: false}}, got {value!r:.60}")
    given = {name: item for name, item in value.items() if item is not None}
    for name, item in given.items():
        if name in RESERVED or not name.isidentifier():
            raise DataError(f"field '{COLUMN}': '{name}' is not the name of a variable of a chat template")
        if not _is_plain(item):
            raise DataError(f"field '{COLUMN}.{name}': expected text, a number, true or false, got {item!r:.60}")
    return given or NONE


def _is_plain(value: JsonValue) -> bool:
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
