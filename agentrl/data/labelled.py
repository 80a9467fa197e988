"""Labelled conversations for reward models: one label per conversation, or one per assistant turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pydantic import JsonValue

from agentrl.config.data import DataConfig
from agentrl.data.dialogues import Dialogue, read_dialogue
from agentrl.data.fields import FieldError, required, wrong
from agentrl.data.rows.base import Row, Rows
from agentrl.data.rows.table import Table, load_table


class Labelled(NamedTuple):
    """A conversation with one label per assistant turn after the prompt; None for a turn without label."""

    dialogue: Dialogue
    labels: Sequence[float | None]


def load_labelled(
    files: Sequence[str], config: DataConfig, *, label_key: str, of_turns: bool, max_samples: int = -1
) -> Table[Labelled]:
    """Load the rows of `files`: the columns that `load_dialogues` reads, and labels (numbers or booleans).

    Args:
        label_key: the column of the labels.
        of_turns: True: a row has a list of labels, one per assistant turn. False: one label, for the last turn.

    Raises:
        DataError: a file or a row is invalid; the message names file, row and field. Every row is checked here.
    """

    def read(row: Row, position: int, rows: Rows) -> Labelled:
        return read_labelled(row, label_key, of_turns, config.system_prompt)

    return load_table(files, read, max_samples)


def read_labelled(row: Row, label_key: str, of_turns: bool, system_prompt: str | None = None) -> Labelled:
    """Read the labelled conversation of a row.

    Raises:
        FieldError: the conversation or its labels are invalid.
    """
    dialogue = read_dialogue(row, system_prompt)
    # an assistant message at the start is part of the prompt
    num_turns = sum(message["role"] == "assistant" for message in dialogue.messages[1:])
    if not num_turns:
        raise FieldError("field 'messages': no assistant turn after the prompt, so there is nothing to label")
    value = required(row, label_key, "a list of labels" if of_turns else "a number")
    if not of_turns:
        return Labelled(dialogue, [*[None] * (num_turns - 1), _label(value, label_key)])
    if not isinstance(value, list) or len(value) != num_turns:
        raise wrong(label_key, f"a list of {num_turns} labels, one per assistant turn", value)
    labels = [None if each is None else _label(each, f"{label_key}[{i}]") for i, each in enumerate(value)]
    if all(label is None for label in labels):
        raise FieldError(f"field '{label_key}': no turn has a label, so there is nothing to learn")
    return Labelled(dialogue, labels)


def _label(value: JsonValue, field: str) -> float:
    if not isinstance(value, int | float) or not abs(value) < float("inf"):
        raise wrong(field, "a number, or true or false", value)
    return float(value)
