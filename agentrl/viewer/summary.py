"""Summary of each rollout: a table row of short columns, read without the conversations."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from agentrl.errors import DataError
from agentrl.store.columns import python_values
from agentrl.store.files import open_file
from agentrl.store.schema import EXCLUDED

REWARD = "reward/"
"""Prefix of the columns for named rewards. `score`, the reward used for training, has the column `reward` instead."""

MAX_REWARDS = 24
"""Maximum number of reward names that get a column."""

_SEGMENTS = "trajectories.list.element.segments.list.element."
_PLAIN = {"step": "step", "uid": "uid", "rollout": "number", "data_source": "source", "index": "index"}
_PLAIN |= {"stop": "stop", "duration_s": "duration_s"}
_READ = [
    *_PLAIN,
    *("error", "infra_failed", EXCLUDED, "rewards", "tool_calls.list.element.name", "tool_calls.list.element.outcome"),
    *(f"{_SEGMENTS}author", f"{_SEGMENTS}token_ids"),
]
_NAMES = pa.list_(pa.string())
SUMMARY = pa.schema(
    {
        "step": pa.int64(),
        "split": pa.string(),
        "uid": pa.string(),
        "number": pa.int64(),
        "group_size": pa.int64(),
        "source": pa.string(),
        "index": pa.int64(),
        "reward": pa.float64(),
        "stop": pa.string(),
        "turns": pa.int64(),
        "calls": pa.int64(),
        "tokens": pa.int64(),
        "trained": pa.int64(),
        "duration_s": pa.float64(),
        "failed": pa.bool_(),
        "excluded": pa.string(),
        "tools": _NAMES,
        "outcomes": _NAMES,
    }
)
"""Columns of every summary.

`tokens` is the number of tokens in all trajectories. `trained` counts only tokens of the model or of a demonstration,
also in trajectories with weight 0. `tools` and `outcomes` have one entry per call.
`group_size` is the number of rollouts in the group. `reward` is null without a score.
"""

Integers = NDArray[np.int64]


def summarize(path: Path, split: str) -> pa.Table:
    """Return one row per rollout of a file of trajectories, in the file's order.

    Raises:
        DataError: the file cannot be read; the message names the file.
    """
    with open_file(path) as file:
        try:
            sizes = pc.value_counts(file.read(["uid"], use_threads=False)["uid"])  # one uid may be in two row groups
            tables = [
                _summary(file.read_row_group(part, _READ, use_threads=False), split, sizes)
                for part in range(file.num_row_groups)
            ]
        except (pa.ArrowException, OSError, ValueError) as error:
            line = " ".join(str(error).split())
            raise DataError(f"{path}: not a readable file of trajectories: {line}") from error
    return pa.concat_tables([SUMMARY.empty_table(), *tables], promote_options="default")


def _summary(table: pa.Table, split: str, sizes: pa.StructArray) -> pa.Table:
    read = {name: column.combine_chunks() for name, column in zip(table.column_names, table.columns, strict=True)}
    calls = read["tool_calls"]
    named = {name: _inside(calls, part) for name, part in (("tools", "name"), ("outcomes", "outcome"))}
    failed = pc.or_(pc.or_(read["infra_failed"], pc.is_valid(read["error"])), pc.equal(read["stop"], "error"))
    columns = {
        **{name: read[column] for column, name in _PLAIN.items()},
        **_counts(read["trajectories"]),
        **named,
        "reward": pa.nulls(table.num_rows, pa.float64()),  # `_with_rewards` sets it
        "group_size": sizes.field("counts").take(pc.index_in(read["uid"], sizes.field("values"))),
        "split": pa.array([split] * table.num_rows, pa.string()),
        "calls": pc.list_value_length(calls),
        "failed": failed,
        "excluded": read.get(EXCLUDED, pa.nulls(table.num_rows, pa.string())),  # new in schema version 5
    }
    known = pa.table({field.name: columns[field.name].cast(field.type) for field in SUMMARY}, SUMMARY)
    return _with_rewards(known, read["rewards"])


def _inside(lists: pa.ListArray, field: str) -> pa.Array:
    return pa.ListArray.from_arrays(lists.offsets, pc.struct_field(lists.values, field))


def _counts(trajectories: pa.ListArray) -> dict[str, pa.Array]:
    """Number of turns, tokens and trained tokens of each rollout."""
    segments = pc.struct_field(trajectories.values, "segments")
    author, token_ids = pc.struct_field(segments.values, "author"), pc.struct_field(segments.values, "token_ids")
    trained = pc.is_in(author, pa.array(["model", "demonstration"])).to_numpy(zero_copy_only=False).astype(np.int64)
    lengths = np.diff(np.asarray(token_ids.offsets)).astype(np.int64)
    ends = np.asarray(segments.offsets)[np.asarray(trajectories.offsets)]
    counted = {"turns": trained, "tokens": lengths, "trained": lengths * trained}
    return {name: pa.array(_sums(values, ends)) for name, values in counted.items()}


def _sums(values: Integers, ends: Integers) -> Integers:
    """Sum the values between consecutive ends: [3 4 5], [0 2 3]  ->  [7 5]."""
    return np.diff(np.concatenate([[0], np.cumsum(values)])[ends])


def _with_rewards(table: pa.Table, rewards: pa.Array) -> pa.Table:
    """Set the column `reward` and add a column for each other reward. Cells are null if a rollout lacks the reward."""
    rows = list(map(dict, python_values(rewards)))
    place = table.schema.get_field_index("reward")
    table = table.set_column(place, SUMMARY.field(place), pa.array([row.get("score") for row in rows], pa.float64()))
    for name in list(dict.fromkeys(chain.from_iterable(rows)))[:MAX_REWARDS]:
        if name != "score":
            table = table.append_column(f"{REWARD}{name}", pa.array([row.get(name) for row in rows], pa.float64()))
    return table
