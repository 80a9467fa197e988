"""Cache of tokenized prompts: all rollouts of a group share a prompt."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from threading import Lock

from agentrl.types.messages import Message, ToolSchema

MAX_PROMPTS = 64


class Prompts:
    """Cache of the token ids of the newest prompts. Only prompts whose message fields are all text are cached."""

    def __init__(self) -> None:
        self._lock = Lock()  # several threads tokenize prompts to measure their length
        self._kept: dict[Hashable, tuple[list[int], Sequence[ToolSchema]]] = {}

    def get(
        self, messages: Sequence[Message], schemas: Sequence[ToolSchema], make: Callable[[], list[int]]
    ) -> list[int]:
        """Return a copy of the prompt's token ids; call `make` if the prompt is not cached."""
        key = _key(messages, schemas)
        if key is None:
            return make()
        kept = self._kept.get(key)
        if kept is None:
            kept = make(), tuple(schemas)  # keeps the schemas alive, so that the object ids in the key stay unique
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
