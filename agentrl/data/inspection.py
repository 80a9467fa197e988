"""What is in the rows of a dataset, and which cannot be used: every one is read, none stops the reading."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal

from pydantic import JsonValue

from agentrl.config.data import DataConfig
from agentrl.data.dialogues import Dialogue, read_dialogue
from agentrl.data.fields import FieldError
from agentrl.data.pairs import Pair, read_pair
from agentrl.data.rows import Row, Rows
from agentrl.data.scanning import first_row, scan
from agentrl.data.table import Table
from agentrl.data.tasks import read_task
from agentrl.errors import DataError
from agentrl.messages import Message
from agentrl.task import Task

Kind = Literal["tasks", "conversations", "pairs"]
Item = Task | Dialogue | Pair

NUM_EXAMPLES = 3
_TYPES = {dict: "object", list: "list", str: "text", bool: "true or false", int: "whole number", float: "number"}


@dataclass(slots=True)
class Finding:
    """What is wrong with some rows, or worth knowing of them: how many, and a few as (where, why), one a reason."""

    kind: str
    count: int = 0
    examples: list[tuple[str, str]] = field(default_factory=list)

    def add(self, where: str, why: str) -> None:
        """One more row."""
        self.count += 1
        if len(self.examples) < NUM_EXAMPLES and why not in (known for _, known in self.examples):
            self.examples.append((where, why))


@dataclass(slots=True)
class Inspection:
    """The rows of some files.

    Attributes:
        columns: name -> how many rows hold what type there; rows without it, or with null, are not counted.
        table: the rows that can be read.
        unreadable: the others.
        exact, normalised: digest of what a readable row asks, and of the same as a reader would take it: in lower case,
            blanks and closing marks aside. By its place in `table`.
        answers: digest of its ground truth, likewise.
        sources: rows of each `data_source`.
        tools: rows that name a tool in `tools_kwargs`, or bring the schemas of tools (`tools`).
        num_without_truth: tasks that have no ground truth.
    """

    kind: Kind
    num_rows: int
    columns: Mapping[str, Mapping[str, int]]
    table: Table[Item]
    unreadable: Finding
    exact: list[bytes]
    normalised: list[bytes]
    answers: list[bytes]
    sources: Counter[str]
    tools: Counter[str]
    num_without_truth: int


def inspect(parts: Sequence[Rows], config: DataConfig, max_samples: int = -1) -> Inspection:
    """Read all rows, the first `max_samples` if that is not negative; what they are, the first one's columns say.

    Raises:
        DataError: there are no rows, or none that is one.
    """
    num_rows = sum(map(len, parts))
    num_rows = num_rows if max_samples < 0 else min(num_rows, max_samples)
    if not num_rows:
        raise DataError("no rows to read")
    kind = _kind(first_row(parts), config)
    read = _Reader(kind, config)
    columns: dict[str, Counter[str]] = {}
    found = Inspection(
        kind,
        num_rows,
        columns,
        Table(parts, read),
        Finding("rows that cannot be read"),
        [],
        [],
        [],
        Counter(),
        Counter(),
        0,
    )
    readable = []
    for position, (part, row, content) in zip(range(num_rows), scan(parts), strict=False):
        try:
            _count(columns, content := _whole(content))
            item = read(content, position, part)
        except (FieldError, DataError) as error:
            where = part.where(row)
            found.unreadable.add(where, str(error).removeprefix(f"{where}: "))
            continue
        readable.append(position)
        _look(item, found)
    found.table = Table(parts, read, readable)
    return found


def digest(text: str) -> bytes:
    """16 bytes that stand for a text."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def normalised(text: str) -> str:
    """A text as a reader takes it: in lower case, blanks and closing marks aside. Signs count: 2+3 is not 2-3."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).rstrip(" .?!:")


@dataclass(frozen=True, slots=True)
class _Reader:
    kind: Kind
    config: DataConfig

    def __call__(self, row: Row, position: int, rows: Rows) -> Item:
        if self.kind == "tasks":
            return read_task(self.config, row, position, rows.source)
        if self.kind == "pairs":
            return read_pair(row, self.config.prompt_key, self.config.system_prompt)
        return read_dialogue(row, self.config.system_prompt)


def _kind(row: Row, config: DataConfig) -> Kind:
    if {"chosen", "rejected"} <= row.keys():
        return "pairs"
    return "conversations" if "messages" in row and config.prompt_key not in row else "tasks"


def _whole(content: Row | DataError) -> Row:
    if isinstance(content, DataError):
        raise content
    return content


def _count(columns: dict[str, Counter[str]], content: Row) -> None:
    for name, value in content.items():
        if value is not None:
            columns.setdefault(name, Counter())[_TYPES.get(type(value), type(value).__name__)] += 1


def _look(item: Item, found: Inspection) -> None:
    messages, answer = _asked(item)
    texts = [_text(message) for message in messages]
    found.exact.append(digest(repr([(each["role"], text) for each, text in zip(messages, texts, strict=True)])))
    spoken = [text for each, text in zip(messages, texts, strict=True) if each["role"] not in ("system", "developer")]
    found.normalised.append(digest(normalised("\n".join(spoken))))
    found.answers.append(digest(repr(answer)))
    if isinstance(item, Task):
        found.sources[item.data_source] += 1
        found.tools.update(item.tools_kwargs.keys())
        found.num_without_truth += item.ground_truth is None
    else:
        tools = item.tools if isinstance(item, Dialogue) else item.chosen.tools
        found.tools.update({tool.name for tool in tools or ()})


def _asked(item: Item) -> tuple[Sequence[Message], JsonValue]:
    """The messages that a row is known by, and what is held to be the answer."""
    if isinstance(item, Task):
        return item.messages, item.ground_truth
    return (item.messages, None) if isinstance(item, Dialogue) else (item.prompt, repr(item[:2]))


def _text(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else repr((content, message.get("tool_calls")))
