"""Prompt and answer of the visible table rows, read from the files on request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from agentrl.errors import AgentRLError
from agentrl.store.files import open_file
from agentrl.store.text import original, read_json
from agentrl.viewer.index import Part, Snapshot
from agentrl.viewer.rollout_page import ShownMessage, shown_messages

MAX_CHARACTERS = 240
"""Maximum length of a prompt or an answer in the table."""

_COLUMNS = ["messages", "trajectories.list.element.messages"]
_PLACE = ("split", "step", "uid", "number")


def excerpts(snapshot: Snapshot, rows: pa.Array) -> list[dict[str, object]]:
    """For each of `rows`, return `_PLACE`, the prompt (the task's last user message) and the model's last text.

    Rollouts whose file cannot be read are skipped.
    """
    ends = np.cumsum([len(part.rows) for part in snapshot.parts])
    positions = np.sort(np.asarray(rows))
    found: list[dict[str, object]] = []
    for number, part in enumerate(snapshot.parts):
        start = int(ends[number]) - len(part.rows)
        wanted = positions[(positions >= start) & (positions < ends[number])] - start
        if len(wanted):
            found += _of_part(part, [int(row) for row in wanted])
    return found


def _of_part(part: Part, rows: Sequence[int]) -> list[dict[str, object]]:
    try:
        read = list(_read(part, rows))
    except (AgentRLError, OSError, ValueError, pa.ArrowException):
        return []  # the index reports the error
    places = part.rows.select(_PLACE).take(rows).to_pylist()
    return [{**place, "uid": original(place["uid"]), **_excerpt(row)} for place, row in zip(places, read, strict=True)]


def _read(part: Part, rows: Sequence[int]) -> Iterator[Mapping[str, object]]:
    """Messages of `rows` (ascending); row groups without a requested row are skipped."""
    with open_file(part.path) as file:
        start = 0
        for number in range(file.num_row_groups):
            end = start + file.metadata.row_group(number).num_rows
            if inside := [row - start for row in rows if start <= row < end]:
                yield from file.read_row_group(number, _COLUMNS, use_threads=False).take(inside).to_pylist()
            start = end


def _excerpt(row: Mapping[str, object]) -> dict[str, str]:
    trajectories = row["trajectories"]
    histories = [_messages(each["messages"]) for each in trajectories] if isinstance(trajectories, list) else []
    prompt = _messages(row["messages"]) or (histories[0] if histories else [])
    answer = histories[-1] if histories else []
    return {"prompt": _last(prompt, "user") or _last(prompt), "answer": _last(answer, "assistant")}


def _messages(text: object) -> list[ShownMessage]:
    try:
        return shown_messages(read_json(original(text))) if isinstance(text, str) else []
    except ValueError:
        return []


def _last(messages: Sequence[ShownMessage], role: str | None = None) -> str:
    """The last non-empty message by `role`, on one line. A message without text shows its tool calls or thoughts."""
    for message in reversed(messages):
        if role in (None, message["role"]) and (line := _line(message)):
            return line
    return ""


def _line(message: ShownMessage) -> str:
    calls = " ".join(f"{call['name']}({call['arguments'][:MAX_CHARACTERS]})" for call in message["calls"])
    words = " ".join((message["text"].strip() or calls or message["thoughts"])[: 4 * MAX_CHARACTERS].split())
    return words if len(words) <= MAX_CHARACTERS else f"{words[:MAX_CHARACTERS]}…"
