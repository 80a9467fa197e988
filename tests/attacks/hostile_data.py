"""Hostile data files: unusual JSON and Parquet, wrong encodings, and paths that are not files."""

from __future__ import annotations

import bz2
import datetime
import gzip
import json
import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

GOOD = {"prompt": "What is 1+1?", "ground_truth": "2", "data_source": "exact_match"}
NESTED = json.loads("[" * 900 + "]" * 900)
VALUES = {
    "null": None,
    "true": True,
    "huge": 10**400,
    "nan": float("nan"),
    "infinite": float("inf"),
    "empty list": [],
    "empty object": {},
    "list": [1, None, {"a": "b"}],
    "object": {"name": [None], "create_kwargs": 3},
    "nested": NESTED,
    "half a surrogate pair": "\ud800",
    "NUL": "a\0b",
    "escape": "\x1b[2Jx",
    "brackets": "[" * 100_000,
    "digits": "1" * 10_000,
}
COLUMNS = (
    *("prompt", "prompts", "ground_truth", "data_source", "agent_name", "reward_model", "extra_info", "tools_kwargs"),
    *("interaction_kwargs", "images", "videos", "messages", "tools", "chosen", "rejected", "tool_config", "answer"),
)
ARROW = {
    "binary": pa.array([b"\xff\xfe", b"x"]),
    "nanoseconds": pa.array([1, 2], pa.timestamp("ns")),
    "a date after year 9999": pa.array([2**30, 1], pa.date32()),
    "decimal": pa.array([Decimal("1.5")] * 2),
    "map": pa.array([[("role", "user"), ("content", "x")]] * 2, pa.map_(pa.string(), pa.string())),
    "object without values": pa.array([{"a": None, "b": 1}] * 2),
    "null": pa.nulls(2),
    "not finite": pa.array([float("nan"), float("inf")]),
    "dictionary": pa.array(["a", "b"]).dictionary_encode(),
    "list of nulls": pa.array([[None], None], pa.list_(pa.string())),
    "no UTF-8": pa.Array.from_buffers(
        *(pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0\4\0\0\0"), pa.py_buffer(b"\xff\xfeab")])
    ),
    "most": pa.array([2**64 - 1, 1], pa.uint64()),
    "messages without content": pa.array([[{"role": "user", "content": None}]] * 2),
}


def hostile_files(folder: Path) -> Iterator[Path]:
    """Yields the hostile files one by one; some are folders, links, or missing."""
    for name, rows in [*_odd_rows(), *_odd_messages()]:
        yield _written(folder / f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    for name, content in _odd_bytes().items():
        yield _written(folder / name, content)
    yield from _odd_parquet(folder)
    yield from _no_files(folder)


def _odd_rows() -> Iterator[tuple[str, list[object]]]:
    for column in COLUMNS:
        for kind, value in VALUES.items():
            yield f"{column} {kind}", [{**GOOD, column: value}, GOOD]
    for kind, value in VALUES.items():
        yield f"row {kind}", [value]
        yield f"conversation {kind}", [{"messages": value}]
        yield f"tools {kind}", [{"messages": [{"role": "user", "content": "q"}], "tools": [value]}]
        yield f"pair {kind}", [{"prompt": "q", "chosen": value, "rejected": "b"}]
        yield f"truth {kind}", [{**GOOD, "reward_model": {"ground_truth": value}}]
        yield f"arguments {kind}", [{**GOOD, "extra_info": {"tools_kwargs": {"a": value}}}]
        yield (
            f"deeper {kind}",
            [{**GOOD, "tools_kwargs": {"a": {"create_kwargs": value}}, "interaction_kwargs": [value]}],
        )
        yield f"user {kind}", [{**GOOD, "interaction_kwargs": {"name": value}}]


def _odd_messages() -> Iterator[tuple[str, list[object]]]:
    for kind, value in VALUES.items():
        call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": value}}]}
        for place, message in {
            "role": {"role": value, "content": "x"},
            "content": {"role": "user", "content": value},
            "calls": {"role": "assistant", "tool_calls": value},
            "function": {"role": "assistant", "tool_calls": [{"function": value}]},
            "arguments": call,
            "part": {"role": "user", "content": [value]},
            "part's type": {"role": "user", "content": [{"type": value, "text": "x"}]},
            "image": {"role": "user", "content": [{"type": "image", "image": value}]},
        }.items():
            yield f"message {place} {kind}", [{**GOOD, "prompt": [{"role": "user", "content": "q"}, message]}]


def _odd_bytes() -> dict[str, bytes]:
    line, listed = json.dumps(GOOD).encode(), json.dumps([GOOD]).encode()
    noise = random.Random(0).randbytes(4_000)
    odd = {"bom.jsonl": b"\xef\xbb\xbf" + line, "bom.json": b"\xef\xbb\xbf" + listed, "noise.json": noise}
    for encoding in ("utf-16", "utf-16-le", "utf-32", "latin-1"):
        text = json.dumps({**GOOD, "prompt": "é"}, ensure_ascii=False)
        odd |= {f"{encoding}.jsonl": text.encode(encoding), f"{encoding}.json": f"[{text}]".encode(encoding)}
    odd |= {f"empty.{kind}": b"" for kind in ("jsonl", "json", "parquet")}
    odd |= {
        "list.json": b"[]",
        "object.json": b"{}",
        "text.json": b'"x"',
        "blank.jsonl": b"\n\n",
        "NUL.jsonl": b"\0" * 99,
    }
    odd |= {
        "gzip.jsonl": gzip.compress(line),
        "bzip2.parquet": bz2.compress(line),
        "rows.jsonl.gz": gzip.compress(line),
    }
    odd |= {
        "noise.jsonl": noise,
        "noise.parquet": noise,
        "rows.csv": b"a,b\n1,2\n",
        "crlf.jsonl": line + b"\r\n" + line,
    }
    odd |= {"deep.jsonl": b"[" * 200_000, "deep.json": b"[" * 200_000 + b"]" * 200_000, "keys.jsonl": b'{"a":' * 99_999}
    return odd | {"digits.jsonl": b'{"prompt": "a", "x": %s}' % (b"9" * 5_000), "1e999.jsonl": b'{"prompt": 1e9999}'}


def _odd_parquet(folder: Path) -> Iterator[Path]:
    for column in COLUMNS:
        for kind, values in ARROW.items():
            columns = {name: pa.array([value] * 2) for name, value in GOOD.items()}
            yield _parquet(folder / f"{column} {kind}.parquet", pa.table({**columns, column: values}))
    yield _parquet(folder / "no rows.parquet", pa.table({"prompt": pa.array([], pa.string())}))
    yield _parquet(folder / "no columns.parquet", pa.table({}))
    yield _parquet(folder / "twice.parquet", pa.Table.from_arrays([pa.array(["a"])] * 2, names=["prompt", "prompt"]))
    times = pa.array([datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)] * 99)
    whole = _parquet(folder / "whole.parquet", pa.table({"prompt": [f"q{i}" for i in range(99)], "at": times}))
    content, chance = whole.read_bytes(), random.Random(1)
    for number in range(40):
        flipped = bytearray(content)
        for place in chance.choices(range(len(content)), k=chance.choice([1, 3, 20])):
            flipped[place] ^= 1 << chance.randrange(8)
        yield _written(folder / f"flipped {number}.parquet", bytes(flipped))
    for end in (8, len(content) // 2, len(content) - 8):
        yield _written(folder / f"cut {end}.parquet", content[:end])


def _no_files(folder: Path) -> Iterator[Path]:
    for name in ("folder", "folder.jsonl", "folder.parquet"):
        (folder / name).mkdir()
        yield folder / name
    for name, target in {"circle.jsonl": "circle.jsonl", "dangling.parquet": "nowhere"}.items():
        (folder / name).symlink_to(target)
        yield folder / name
    yield folder / ("x" * 300 + ".jsonl")
    yield folder / "a\0b.jsonl"
    yield Path("/dev/null")


def _parquet(path: Path, table: pa.Table) -> Path:
    pq.write_table(table, path)
    return path


def _written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path
