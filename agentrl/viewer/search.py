"""Text searched in the messages of every rollout, newest step first, in a thread of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from threading import Lock, Thread

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from agentrl.errors import AgentRLError
from agentrl.store.files import open_file
from agentrl.store.text import original, read_json, writable
from agentrl.viewer.conversation import shown_messages
from agentrl.viewer.index import Index, Part

FORGOTTEN_AFTER_S = 10.0
"""A search nobody asks about any more ends."""

Mask = NDArray[np.bool_]
_MESSAGES = "trajectories.list.element.messages"


class Search:
    """Where `text` stands, upper and lower case alike. What is found so far can be asked at any time."""

    def __init__(self, text: str, index: Index) -> None:
        self.text = text
        self._index = index
        self._found: dict[Part, Mask] = {}
        self._asked = time.monotonic()
        self._lock = Lock()
        self._thread: Thread | None = None

    def mask(self, parts: Sequence[Part]) -> tuple[pa.Array, int]:
        """Of the rows of `parts` those with the text, and how many of the parts were searched; goes on searching."""
        with self._lock:
            self._asked = time.monotonic()
            found = [self._found.get(part) for part in parts]
            if any(mask is None for mask in found):
                self._go_on()
        masks = [
            np.zeros(len(part.rows), bool) if mask is None else mask for part, mask in zip(parts, found, strict=True)
        ]
        return pa.array(np.concatenate([np.zeros(0, bool), *masks])), sum(mask is not None for mask in found)

    def _go_on(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = Thread(target=self._search, name="search", daemon=True)
            self._thread.start()

    def _search(self) -> None:
        for part in self._index.snapshot().parts:
            if time.monotonic() - self._asked > FORGOTTEN_AFTER_S:
                return
            if part not in self._found:
                mask = _matches(part, self.text)
                with self._lock:
                    self._found[part] = mask


def _matches(part: Part, text: str) -> Mask:
    """Of the rows of one file those whose messages hold `text`; none where the file cannot be read."""
    mask = np.zeros(len(part.rows), bool)
    try:
        with open_file(part.path) as file:
            start = 0
            for number in range(file.num_row_groups):
                lists = file.read_row_group(number, [_MESSAGES])["trajectories"].combine_chunks()
                mask[[start + row for row in _rows_with(lists, text)]] = True
                start += len(lists)
    except (AgentRLError, OSError, ValueError, IndexError, pa.ArrowException):
        return mask  # the index says what is wrong with the file; a new one is another part
    return mask


def _rows_with(lists: pa.ListArray, text: str) -> Iterator[int]:
    messages = pc.struct_field(lists.values, "messages")
    places = np.asarray(lists.offsets)
    for place in pc.indices_nonzero(_candidates(messages, writable(text))).to_pylist():
        if _says(original(messages[place].as_py()), text.lower()):
            yield int(np.searchsorted(places, place, side="right")) - 1


def _candidates(messages: pa.Array, text: str) -> pa.Array:
    """Those whose JSON holds `text`, written as it is or escaped: decoding all of them would take seconds."""
    masks = [
        pc.match_substring(messages, needle, ignore_case=True)
        for needle in {text, json.dumps(text, ensure_ascii=False)[1:-1]}
    ]
    return masks[0] if len(masks) == 1 else pc.or_(*masks)


def _says(messages: str, text: str) -> bool:
    read = read_json(messages)
    return any(text in line.lower() for message in shown_messages(read) for line in _texts(message))


def _texts(message: Mapping[str, object]) -> Iterator[str]:
    yield str(message["text"])
    calls = message["calls"]
    for call in calls if isinstance(calls, list) else ():
        yield from (call["name"], call["arguments"])
