"""Inspection of a dataset: reads every row, and reports statistics and bad rows."""

from __future__ import annotations

import json
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
from agentrl.data.rows.base import Row, Rows
from agentrl.data.rows.scan import first_row, scan
from agentrl.data.rows.table import Table
from agentrl.data.tasks import read_task
from agentrl.errors import DataError
from agentrl.types.messages import Message
from agentrl.types.task import Task

Kind = Literal["tasks", "conversations", "pairs"]
Item = Task | Dialogue | Pair

NUM_EXAMPLES = 3
_TYPES = {dict: "object", list: "list", str: "text", bool: "true or false", int: "whole number", float: "number"}


@dataclass(slots=True)
class Finding:
    """A problem or a note about some rows: their number, and a few examples (where, reason) with different reasons."""

    kind: str
    count: int = 0
    examples: list[tuple[str, str]] = field(default_factory=list)

    def add(self, where: str, why: str, *, listed: bool = False) -> None:
        """Count one more row. With `listed`, the row is always added to the examples."""
        self.count += 1
        if listed or (len(self.examples) < NUM_EXAMPLES and why not in (known for _, known in self.examples)):
            self.examples.append((where, why))


@dataclass(slots=True)
class Inspection:
    """Result of reading the rows of some files.

    Attributes:
        columns: column name -> type -> number of rows; missing and null values are not counted.
        table: the rows that can be read.
        unreadable: the rows that cannot be read.
        exact: one digest per row of `table`. It covers the prompt, and the arguments of tools and simulated user. For a
            conversation, all messages count as the prompt.
        normalised: like `exact`, but the prompt is in lower case and has no system messages, repeated blanks or closing
            punctuation.
        answers: one digest per row of `table`; it covers the ground truth, or both conversations of a pair.
        sources: number of rows of each `data_source`.
        tools: tool -> number of rows with the tool in `tools_kwargs` or its schema in `tools`.
        num_without_truth: number of tasks without ground truth.
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
    """Read all rows, or the first `max_samples` rows if `max_samples` is not negative.

    The first row determines the kind of all rows.

    Raises:
        DataError: there are no rows, or no row can be read.
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
    """Return a 16-byte hash of a text."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def normalised(text: str) -> str:
    """Return a text in lower case, without repeated blanks and closing punctuation. Signs such as + are kept."""
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
    arguments = _tool_arguments(item)
    turns = [(each["role"], text) for each, text in zip(messages, texts, strict=True)]
    found.exact.append(digest(repr((turns, arguments))))
    conversation = [
        text for each, text in zip(messages, texts, strict=True) if each["role"] not in ("system", "developer")
    ]
    found.normalised.append(digest(repr((normalised("\n".join(conversation)), arguments))))
    found.answers.append(digest(repr(answer)))
    if isinstance(item, Task):
        found.sources[item.data_source] += 1
        found.tools.update(item.tools_kwargs.keys())
        found.num_without_truth += item.ground_truth is None
    else:
        tools = item.tools if isinstance(item, Dialogue) else item.chosen.tools
        found.tools.update({tool.name for tool in tools or ()})


def _asked(item: Item) -> tuple[Sequence[Message], JsonValue]:
    """Return the messages that identify a row, and the row's answer."""
    if isinstance(item, Task):
        return item.messages, item.ground_truth
    return (item.messages, None) if isinstance(item, Dialogue) else (item.prompt, repr(item[:2]))


def _tool_arguments(item: Item) -> str:
    """Return the arguments of a task's tools and simulated user. They distinguish tasks with equal prompts.

    The ground truth is removed from the arguments, because verl's rows also pass it to tools. Otherwise `duplicates`
    would miss equal prompts with different answers.
    """
    if not isinstance(item, Task) or not (item.tools_kwargs or item.interaction_kwargs):
        return ""
    return json.dumps(_without(item.ground_truth, [item.tools_kwargs, item.interaction_kwargs]), sort_keys=True)


def _without(truth: JsonValue, value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _without(truth, item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without(truth, item) for item in value]
    return None if value is not None and str(value) == str(truth) else value


def _text(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else repr((content, message.get("tool_calls")))


def duplicates(found: Inspection) -> list[Finding]:
    """Find repeated rows.

    A row is repeated if an earlier row is equal, differs only in the ground truth, or has the same `normalised` text.
    """
    exact, contrary, near = Finding("repeated rows"), Finding("repeated rows with a different answer"), Finding(_NEAR)
    first_exact: dict[bytes, int] = {}
    first_near: dict[bytes, int] = {}
    for row, (key, like) in enumerate(zip(found.exact, found.normalised, strict=True)):
        before = first_exact.setdefault(key, row)
        first = first_near.setdefault(like, row)
        if before < row:
            finding = exact if found.answers[before] == found.answers[row] else contrary
            finding.add(found.table.where(row), f"same as {found.table.where(before)}")
        elif first < row:
            near.add(found.table.where(row), f"same as {found.table.where(first)}")
    return [exact, contrary, near]


def leaks(train: Inspection, val: Inspection) -> list[Finding]:
    """Find validation rows that are also training rows: equal, or equal as `normalised` text."""
    exact, near = Finding("rows also in the training files"), Finding(f"rows also in the training files, {_ASIDE}")
    first_exact, first_near = _first(train.exact), _first(train.normalised)
    for row, (key, like) in enumerate(zip(val.exact, val.normalised, strict=True)):
        if key in first_exact:
            exact.add(val.table.where(row), f"same as {train.table.where(first_exact[key])}")
        elif like in first_near:
            near.add(val.table.where(row), f"same as {train.table.where(first_near[like])}")
    return [exact, near]


def _first(keys: Sequence[bytes]) -> dict[bytes, int]:
    return {key: row for row, key in reversed(list(enumerate(keys)))}


_ASIDE = "ignoring case, spaces and final punctuation"
_NEAR = f"repeated rows, {_ASIDE}"
