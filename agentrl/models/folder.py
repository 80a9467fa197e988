"""Check that a model's folder on disk is complete, before anything is loaded."""

from __future__ import annotations

import json
import os
import re
import struct
from pathlib import Path

from agentrl.errors import ConfigError, Kind

CONFIG_FILE, TOKENIZER_FILE = "config.json", "tokenizer.json"
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
"""File names of weights in one file; if there are several files, `<name>.index.json` lists them."""
MAX_HEADER = 100_000_000
"""Longest header that safetensors reads, in bytes."""
_HUB_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?")


def is_folder(path: str) -> bool:
    """Whether `path` is a folder, existing or not, instead of a name on the hub."""
    # pathlib raises on names that are too long
    return os.path.isdir(path) or not _HUB_NAME.fullmatch(path)  # noqa: PTH112


def check_folder(path: Path, key: str) -> None:
    """Reject a folder that does not contain a complete model in Hugging Face's layout.

    Args:
        key: the configuration key that contains the folder, for error messages.

    Raises:
        ConfigError: a file is missing or truncated; the message names it.
    """
    if not os.path.isdir(path):  # noqa: PTH112  # pathlib raises on names that are too long
        raise ConfigError.at(key, Kind.NOT_FOUND, f"{key}: there is no folder '{path}'")
    if not (path / CONFIG_FILE).is_file():
        if (latest := path / "checkpoints" / "latest").is_dir():
            raise ConfigError.at(key, Kind.WRONG_VALUE, f"{key}: '{path}' is a run's folder: use its model, {latest}")
        raise ConfigError.at(key, Kind.NOT_FOUND, f"{key}: cannot load '{path}': there is no {CONFIG_FILE}")
    for file in weight_files(path, key):
        if not file.is_file():
            raise ConfigError.at(
                key, Kind.NOT_FOUND, f"{key}: cannot load '{path}': there is no {file.name}, which its index names"
            )
        check_safetensors(file, key)


def check_safetensors(file: Path, key: str) -> None:
    """Reject a safetensors file whose size does not match its header (https://huggingface.co/docs/safetensors).

    Raises:
        ConfigError: the file is truncated, or not a safetensors file.
    """
    if file.suffix != ".safetensors":
        return
    size = file.stat().st_size
    try:
        with file.open("rb") as opened:
            (header_size,) = struct.unpack("<Q", opened.read(8))
            if header_size > MAX_HEADER:
                raise ValueError("text, such as a pointer to a file that was not fetched")
            header = json.loads(opened.read(header_size)) if header_size < size else {}
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    except (struct.error, ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError.at(
            key, Kind.WRONG_VALUE, f"{key}: cannot load '{file}': it is not a safetensors file"
        ) from None
    if (whole := 8 + header_size + max(ends, default=0)) != size:
        raise ConfigError.at(
            key, Kind.WRONG_VALUE, f"{key}: cannot load '{file}': it has {size} of {whole} bytes; copy it again"
        )


def checkpoint_shapes(path: Path, key: str) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight in a folder, without loading the weights.

    Raises:
        ConfigError: see `check_folder`.
    """
    from safetensors import safe_open

    check_folder(path, key)
    shapes: dict[str, tuple[int, ...]] = {}
    for file in weight_files(path, key):
        if file.suffix == ".safetensors":
            with safe_open(file, "pt") as opened:
                shapes |= {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
        else:
            import torch

            loaded = torch.load(file, map_location="meta", weights_only=True)
            shapes |= {name: tuple(tensor.shape) for name, tensor in loaded.items()}
    return shapes


def invalid_json(path: Path) -> str | None:
    """Return an error message for the first unreadable JSON file of a folder; None if all are valid."""
    for file in sorted(path.glob("*.json")):
        try:
            json.loads(file.read_bytes())
        except (OSError, ValueError) as error:
            return f"cannot read '{file}': {'not JSON: ' if isinstance(error, ValueError) else ''}{error}"
    return None


def weight_files(path: Path, key: str) -> list[Path]:
    """Return the files of a folder that contain its weights.

    Raises:
        ConfigError: there are no weights, or their index cannot be read.
    """
    for name in WEIGHT_FILES:
        if (path / name).is_file():
            return [path / name]
        if (index := path / f"{name}.index.json").is_file():
            return [path / shard for shard in _shards(index, key)]
    raise ConfigError.at(
        key, Kind.NOT_FOUND, f"{key}: cannot load '{path}': there are no weights ({' or '.join(WEIGHT_FILES)})"
    )


def _shards(index: Path, key: str) -> list[str]:
    try:
        return sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError.at(
            key, Kind.WRONG_VALUE, f"{key}: cannot load '{index}': it is not an index of weights; copy it again"
        ) from None


def tokenizer_file(name: str) -> Path:
    """Return the vocabulary file for the value of `--tokenizer`, which names a file or a folder.

    Raises:
        ConfigError: there is no such file.
    """
    path = Path(name, TOKENIZER_FILE) if os.path.isdir(name) else Path(name)  # noqa: PTH112  # pathlib
    if not os.path.isfile(path):  # noqa: PTH113
        raise ConfigError.keyless(f"'--tokenizer {name}': there is no file '{path}'")
    return path
