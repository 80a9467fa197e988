"""The prompts of late: all rollouts of a group begin with the same one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from threading import Lock

from agentrl.messages import Message, ToolSchema

MAX_PROMPTS = 64


class Prompts:
    """Token ids of the last prompts whose messages are nothing but text."""

    def __init__(self) -> None:
        self._lock = Lock()  # rows are measured on several threads
        self._kept: dict[Hashable, tuple[list[int], Sequence[ToolSchema]]] = {}

    def get(
        self, messages: Sequence[Message], schemas: Sequence[ToolSchema], make: Callable[[], list[int]]
    ) -> list[int]:
        """The ids of this prompt, in a list of the caller's own; `make` is called where they are not known."""
        key = _key(messages, schemas)
        if key is None:
            return make()
        kept = self._kept.get(key)
        if kept is None:
            kept = make(), tuple(schemas)  # alive, so that no other schema gets the id of one in the key
            with self._lock:
                if len(self._kept) >= MAX_PROMPTS:
                    del self._kept[next(iter(self._kept))]
                self._kept[key] = kept
        return list(kept[0])


def _key(messages: Sequence[Message], schemas: Sequence[ToolSchema]) -> Hashable:
    fields = [value for message in messages for value in message.values()]
    if not all(type(value) is str for value in fields):
        return None
    return tuple(map(id, schemas)), tuple(map(tuple, messages)), tuple(fields)
