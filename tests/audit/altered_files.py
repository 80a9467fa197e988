"""Alters one value of a rollout file, at a random place of a column; the seals are kept or recomputed."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.audit.reading.checksums import seals_of
from agentrl.audit.reading.table import Step

NEW_ITEMS = {
    "turn_rewards": {"trajectory": 0, "segment": 1, "name": "interaction", "value": 0.5, "observation_key": None},
    "tool_rewards": {"name": "other", "value": 0.5},
    "media": "0a1b",
}
"""Items for lists that are empty in a text-only run with function tools."""


@dataclass(frozen=True)
class Place:
    """A value: `holder[key]`, with the path of its leaf and its row."""

    row: int
    holder: Any
    key: Any

    @property
    def value(self) -> Any:
        return self.holder[self.key]

    def put(self, value: Any) -> None:
        self.holder[self.key] = value


def places(row: int, values: dict[str, Any], path: str) -> Iterator[Place]:
    """Every place in a row where a leaf has a value."""
    yield from _below(row, values, path.split("."))


def _below(row: int, holder: Any, path: list[str]) -> Iterator[Place]:
    name, *rest = path
    value = holder[name]
    if isinstance(value, list):
        for index, item in enumerate(value):
            if rest:
                yield from _below(row, item, rest)
            else:
                yield Place(row, value, index)
    elif not rest:
        yield Place(row, holder, name)


def with_new_item(values: dict[str, Any], path: str) -> None:
    """Add an item to the list that contains the leaf at `path`."""
    if path.endswith("media"):
        values["trajectories"][0]["segments"][0]["media"].append(NEW_ITEMS["media"])
    else:
        values[path.split(".")[0]].append(copy.copy(NEW_ITEMS[path.split(".")[0]]))


def other(value: Any, kind: str, random: Random) -> Any:
    """Another value of the same type; for null, a non-null value."""
    if value is None:
        return [-0.5] if kind in ("double", "float") else "x"
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return random.choice([new for new in (value + "x", "x" + value, value[1:], "other") if new != value])
    if isinstance(value, float):
        return value + random.choice([-1, 1]) * random.uniform(0.01, 9)
    top = {"uint32": 2**32 - 1, "uint64": 2**63}.get(kind, 500)
    return next(new for _ in range(9) if (new := random.randint(0, top)) != value)


def json_edit(text: str, random: Random) -> str:
    """The messages with the content of one changed."""
    messages = json.loads(text)
    random.choice(messages)["content"] += random.choice(["x", " and", "7"])
    return json.dumps(messages, ensure_ascii=False, separators=(",", ":"))


def write(table: pa.Table, rows: list[dict[str, Any]], path: Path, *, sealed: bool) -> None:
    """Write the rows as a file; `sealed` recomputes the seals with the audit's own implementation."""
    altered = pa.Table.from_pylist(rows, schema=table.schema)
    if sealed:
        seals = seals_of(Step(path, altered, 0)).tolist()
        place = altered.schema.get_field_index("seals")
        altered = altered.set_column(
            place,
            altered.schema.field(place),
            pa.array(seals, pa.list_(pa.uint32())).cast(altered.schema.field(place).type),
        )
    pq.write_table(altered, path)
