"""Log formats: verl's dumped generations, chat messages, TRL's logged completions, OpenEnv's traces."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

from pydantic import JsonValue

from agentrl.data.fields import FieldError, optional_object, optional_text, parse_json, required, wrong
from agentrl.data.rows.base import Row
from agentrl.errors import DataError
from agentrl.store.importers.conversation import read_conversation, split_at_answer
from agentrl.store.importers.logged import Logged, ReadRow, an_object, finite, numbers_of, step_of, without
from agentrl.store.importers.reading import log_files, log_rows
from agentrl.store.importers.traces import TRACES, trace_row
from agentrl.types.messages import Message

_VERL_UID = re.compile(r"(.+)_(\d+)_(\d+)", re.DOTALL)


def verl_row(value: JsonValue) -> Logged:
    """Read a line of verl's dumped generations (`trainer.rollout_data_dir`).

    The fields are `input`, `output`, `gts` (the ground truth), `score`, `step`, and other reward values.
    `input` and `output` are texts without control tokens, so their turns cannot be separated. `input` becomes one user
    message, and `output` one assistant message. A `uid` may have the form SAMPLE_ROLLOUT_OUTPUT: it then names the
    group, the rollout in the group, and the output of the rollout.
    """
    row = an_object(value, '{"input": ..., "output": ..., "score": ...}')
    place = _VERL_UID.fullmatch(optional_text(row, "uid") or "")
    own = ("input", "output", "gts", "score", "step", "data_source", *(["uid"] if place else []))
    rest = without(row, own)
    numbers = numbers_of(rest)
    return Logged(
        prompt=[Message(role="user", content=_text(row, "input"))],
        answer=[Message(role="assistant", content=_text(row, "output"))],
        rewards={"score": finite(row, "score"), **numbers},
        ground_truth=row.get("gts"),
        data_source=optional_text(row, "data_source"),
        step=step_of(row),
        uid=place[1] if place else None,
        attempt=place[2] if place else None,
        extra_info={"text_prompt": True},
        rest=without(rest, numbers),
    )


def messages_row(value: JsonValue) -> Logged:
    """Read a list of messages, or an object with `messages` and optional fields.

    The optional fields are `tools`, `reward` or `score`, `rewards` by name, `ground_truth`, `data_source`, `uid` (the
    same for all rollouts of a group) and `step`. All other fields are kept in `rest`.
    """
    row = {"messages": value} if isinstance(value, list) else an_object(value, '{"messages": [...]}')
    messages = read_conversation(required(row, "messages", "a list of messages"), "messages")
    prompt, answer = split_at_answer(messages, "messages")
    tools = parse_json(row.get("tools") or [], "tools")
    if not isinstance(tools, list):
        raise wrong("tools", "a list of tool schemas", tools)
    own = ("messages", "tools", "reward", "score", "rewards", "ground_truth", "data_source", "uid", "step")
    return Logged(
        prompt,
        answer,
        _rewards(row),
        row.get("ground_truth"),
        optional_text(row, "data_source"),
        step_of(row),
        optional_text(row, "uid"),
        extra_info={"tools": tools} if tools else {},
        rest=without(row, own),
    )


def trl_reader(reward_columns: Sequence[str]) -> ReadRow:
    """Return the row reader for TRL's `completions_*.parquet`.

    The columns are `step`, `prompt`, `completion`, `advantage`, and one column per reward function. The score is the
    unweighted sum of the reward columns, because TRL does not log its reward weights. A column that is null in a row
    is not part of the row's sum.

    Args:
        reward_columns: columns of reward functions. If empty: all numeric columns but `step` and `advantage`.
    """

    def trl_row(value: JsonValue) -> Logged:
        row = an_object(value, '{"prompt": ..., "completion": ...}')
        rest = without(row, ("step", "prompt", "completion"))
        numbers = numbers_of(without(rest, ("advantage",)))
        if missing := [name for name in reward_columns if name not in row]:
            raise FieldError(f"no field '{missing[0]}', the column of --reward-column")
        rewards = {name: numbers[name] for name in reward_columns or numbers if name in numbers}
        return Logged(
            _side(row, "prompt", "user"),
            _side(row, "completion", "assistant"),
            {**rewards, "score": sum(rewards.values())} if rewards else {},
            step=step_of(row),
            extra_info={"text_prompt": True} if isinstance(row["prompt"], str) else {},
            rest=without(rest, rewards),
        )

    return trl_row


def reader_of(name: str, reward_columns: Sequence[str]) -> ReadRow:
    """Return the row reader of a format."""
    return {"verl": verl_row, "messages": messages_row, "trl": trl_reader(reward_columns), TRACES: trace_row}[name]


FORMATS = {"verl": ("input", "output"), "messages": ("messages",), "trl": ("prompt", "completion"), TRACES: ("turns",)}
"""Formats -> keys that every row of the format has."""


def guess_format(source: Path) -> str:
    """Return the format of the first row that matches a format.

    Raises:
        DataError: the row matches several formats, or no row matches a format.
    """
    hint = f"give --format {' or '.join(FORMATS)}"
    for where, row in chain.from_iterable(map(log_rows, log_files(source))):
        found = _formats_of(row)
        if len(found) > 1:
            raise DataError(f"{where}: its keys match the formats {' and '.join(found)}: {hint}")
        if found:
            return found[0]
    raise DataError(f"{source}: no row has a known format: {hint}")


def _formats_of(row: Callable[[], JsonValue]) -> list[str]:
    try:
        value = row()
    except (FieldError, RecursionError):
        return []
    if isinstance(value, list):
        return ["messages"]
    if isinstance(value, dict) and "messages" not in value:
        value = value.get("trace", value)
    return [name for name, keys in FORMATS.items() if isinstance(value, dict) and all(key in value for key in keys)]


def _text(row: Row, key: str) -> str:
    value = required(row, key, "text")
    if not isinstance(value, str):
        raise wrong(key, "text", value)
    return value


def _rewards(row: Row) -> dict[str, float]:
    """Return the rewards by name. The field `reward` or `score` becomes the reward `score`, which is trained on."""
    named = optional_object(row, "rewards")
    score = [{"score": finite(row, key)} for key in ("reward", "score") if row.get(key) is not None]
    return {**{name: finite(named, name) for name in named}, **(score[0] if score else {})}


def _side(row: Row, key: str, role: str) -> list[Message]:
    value = required(row, key, "text or a list of messages")
    if isinstance(value, str):
        return [Message(role=role, content=value)]
    return read_conversation(value, key)
