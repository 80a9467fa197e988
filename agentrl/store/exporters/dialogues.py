"""Export of rollouts as dialogues: rows for `data.train_files` of supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from agentrl.chat.history import as_one_text
from agentrl.data.rows.base import Row
from agentrl.store.exporters.selection import Groups, Selection, place
from agentrl.types.messages import Message


def dialogue_rows(groups: Groups, selection: Selection) -> Iterator[Row]:
    """Yield one row per conversation: `messages`, `tools` if any, `rewards` by name, and the columns from `place`.

    `reasoning_content` is moved into the content of messages, because not every chat template reads it.

    A conversation that cannot be trained on is skipped, for example if the arguments of a tool call are not a JSON
    object.
    """
    for group in groups:
        for stored in selection.rollouts(group):
            tools = selection.offered(stored.task)
            given = {"tools": tools} if tools else {}
            for messages in stored.rollout.trained_dialogues:
                row = {"messages": messages, **given, "rewards": stored.rollout.rewards, **place(stored)}
                if selection.is_trainable(stored, cast(Row, row)):
                    yield cast(Row, {**row, "messages": [*map(as_one_text, cast("list[Message]", row["messages"]))]})
