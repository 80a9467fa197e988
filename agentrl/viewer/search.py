"""Full-text search in the messages of all rollouts, newest step first, in a background thread."""

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
from agentrl.viewer.index import Index, Part
from agentrl.viewer.rollout_page import shown_messages

FORGOTTEN_AFTER_S = 10.0
"""A search stops if its results are not requested for this many seconds."""

Mask = NDArray[np.bool_]
_MESSAGES = "trajectories.list.element.messages"


class Search:
    """Case-insensitive search for `text`. Partial results are available at any time."""

    def __init__(self, text: str, index: Index) -> None:
        self.text = text
        self._index = index
        self._found: dict[Part, Mask] = {}
        self._asked = time.monotonic()
        self._lock = Lock()
        self._thread: Thread | None = None

    def mask(self, parts: Sequence[Part]) -> tuple[pa.Array, int]:
        """Return the mask of matching rows of `parts`, and the number of parts that are already searched.

        The other parts are searched in the background.
        """
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
    """Mask of the rows of one file whose messages contain `text`; all false if the file cannot be read."""
    mask = np.zeros(len(part.rows), bool)
    try:
        with open_file(part.path) as file:
            start = 0
            for number in range(file.num_row_groups):
                lists = file.read_row_group(number, [_MESSAGES])["trajectories"].combine_chunks()
                mask[[start + row for row in _rows_with(lists, text)]] = True
                start += len(lists)
    except (AgentRLError, OSError, ValueError, IndexError, pa.ArrowException):
        return mask  # the index reports the error; a changed file becomes a new part
    return mask


def _rows_with(lists: pa.ListArray, text: str) -> Iterator[int]:
    messages = pc.struct_field(lists.values, "messages")
    places = np.asarray(lists.offsets)
    for place in pc.indices_nonzero(_candidates(messages, writable(text))).to_pylist():
        if _says(original(messages[place].as_py()), text.lower()):
            yield int(np.searchsorted(places, place, side="right")) - 1


def _candidates(messages: pa.Array, text: str) -> pa.Array:
    """Mask of messages whose JSON contains `text`, plain or escaped.

    Only these messages are decoded, because decoding is slow.
    """
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
