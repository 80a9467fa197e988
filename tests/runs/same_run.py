"""Compares two runs bit by bit: every file of their folders, except values that depend on a clock."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml

MOST_OF_A_FILE = 5
PLACES = ("default_local_dir", "resume_mode", "resume_from_path")  # of `trainer`: a run's folder, and how it resumes
_CLOCK = re.compile(r"(^|/)(timing_s|perf|engine)/|_s(/mean|/max)?$")
"""Names of metrics and columns that depend on a clock: timing_s/step, rollout_s/mean, tool_calls.started_s. The
engine's batching and cache depend on the arrival times of requests.
"""
_NOT_COMPARED = re.compile(
    r"(\.lock|report\.html|.*manifest\.json|[a-z]+_id|(tensorboard|profile)/.*)"
)  # derived from other files, or times


def differences(one: Path, other: Path) -> list[str]:
    """The differences between the runs `one` and `other`, one line each: `file: place: value and value`.

    It compares the names of files, checkpoints (weights, optimizer, random state) with their links, trajectories of
    training and validation with their seals, metrics, generations, warnings, samples and the configuration.

    Raises:
        FileNotFoundError: a folder contains no run, so nothing can be compared.
    """
    for folder in (one, other):
        (folder / "metrics.jsonl").stat()
    names, others = _files(one), _files(other)
    found = [f"{name}: only in one of the two" for name in sorted(names ^ others)]
    for name in sorted(names & others):
        of_file = list(islice(compare(name, one / name, other / name), MOST_OF_A_FILE + 1))
        found += [f"{name}: {line}" for line in of_file[:MOST_OF_A_FILE]] + ["..."] * (len(of_file) > MOST_OF_A_FILE)
    return found


def _files(folder: Path) -> set[str]:
    """Every file and link, including leftovers of a killed writer."""
    paths = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or path.is_file()}
    return {path for path in paths if not _NOT_COMPARED.fullmatch(path)}


def compare(name: str, one: Path, other: Path) -> Iterator[str]:
    """The places where two files, or two links, differ."""
    if one.is_symlink() or other.is_symlink():
        yield from _unlike("link", one.resolve().name, other.resolve().name)
    elif read := READERS.get(one.suffix):
        yield from _unlike("", read(one), read(other))
    elif one.read_bytes() != other.read_bytes():
        yield "other bytes"


def _unlike(place: str, one: Any, other: Any) -> Iterator[str]:
    """The places where two values differ, at any depth. Any: any value of a file."""
    if type(one) is not type(other):
        yield f"{place}: {one!r:.60} and {other!r:.60}"
    elif isinstance(one, dict):
        for key in sorted(one.keys() | other.keys(), key=str):
            yield from _unlike(f"{place}.{key}".lstrip("."), one.get(key), other.get(key))
    elif isinstance(one, list | tuple) and len(one) == len(other):
        for number, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            yield from _unlike(f"{place}[{number}]", mine, theirs)
    elif isinstance(one, list | tuple):
        yield f"{place}: {len(one)} and {len(other)} entries"
    elif isinstance(one, torch.Tensor):
        if (one.dtype, one.shape) != (other.dtype, other.shape) or not torch.equal(_bits(one), _bits(other)):
            yield f"{place}: another tensor"
    elif repr(one) != repr(other):  # exact for floats: distinguishes -0.0 from 0.0, and equates NaN with NaN
        yield f"{place}: {one!r:.60} and {other!r:.60}"


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _untimed(value: Any) -> Any:
    """The record without values that depend on a clock."""
    if isinstance(value, dict):
        return {name: _untimed(each) for name, each in value.items() if not _CLOCK.search(name)}
    return [_untimed(each) for each in value] if isinstance(value, list) else value


def _rows(path: Path) -> list[Any]:
    return [_untimed(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def _config(text: str) -> Any:
    config = yaml.safe_load(text)  # YAML can read JSON
    for name in PLACES:
        config["trainer"].pop(name, None)
    return config


def _trajectories(path: Path) -> dict[str, Any]:
    table = pq.read_table(path)
    names = [leaf for field in table.schema if field.name != "seals" for leaf in _leaves(field.name, field.type)]
    rows = table.to_pylist()
    for row in rows:
        row["seals"] = dict(zip(names, row["seals"], strict=True))
        row["facts"] = json.loads(row["facts"])
        row["seals"].pop("facts")  # times are among them
        if row["facts"].get("harness_exit_code") is None:  # it was stopped, at any moment
            row["facts"].pop("harness_output", None)
    metadata = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    config = metadata.pop("agentrl.provenance.config")
    return {"rows": _untimed(rows), "metadata": metadata, "config": _config(config)}


def _leaves(name: str, kind: pa.DataType) -> Iterator[str]:
    """The leaf columns of a column, in the order in which rows seal them."""
    if pa.types.is_list(kind):
        yield from _leaves(name, kind.value_type)
    elif pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(f"{name}.{field.name}", field.type)
    else:
        yield name


READERS: dict[str, Callable[[Path], Any]] = {
    ".parquet": _trajectories,
    ".pt": lambda path: torch.load(path, map_location="cpu", weights_only=True),
    ".jsonl": _rows,
    ".json": lambda path: _untimed(json.loads(path.read_text(encoding="utf-8"))),
    ".yaml": lambda path: _config(path.read_text(encoding="utf-8")),
}
