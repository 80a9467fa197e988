"""Checksums of a checkpoint's files, so that a damaged checkpoint is not loaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agentrl.errors import ConfigError, Kind
from agentrl.run_folder.checkpoints import STATE_FILE
from agentrl.run_folder.files import write_atomically

MANIFEST_FILE = "manifest.json"
_THREADS = 4  # hashing releases the GIL


def write_manifest(checkpoint: Path) -> None:
    """Write the SHA-256 of every file in the folder except `run_state.json`, which may be updated later."""
    write_atomically(
        checkpoint / MANIFEST_FILE, json.dumps(_checksums(checkpoint, sorted(_files(checkpoint))), indent=1)
    )


def check_manifest(checkpoint: Path) -> None:
    """Compare the files with their checksums. If an earlier version of agentrl saved no checksums, print a notice.

    Raises:
        ConfigError: a file is missing or was changed, or the checksums cannot be read.
    """
    file = checkpoint / MANIFEST_FILE
    if not file.is_file():
        print(f"'{checkpoint}' has no {MANIFEST_FILE}: its files are not checked for damage")
        return
    kept = _read(file)
    if missing := sorted(kept.keys() - set(_files(checkpoint))):
        raise _damaged(checkpoint, f"{missing[0]} is missing")
    found = _checksums(checkpoint, sorted(kept))
    if changed := [name for name in found if found[name] != kept[name]]:
        raise _damaged(checkpoint, f"{changed[0]} was changed after the run wrote it")


def _files(checkpoint: Path) -> Iterator[str]:
    for path in checkpoint.rglob("*"):
        name = path.relative_to(checkpoint).as_posix()
        if path.is_file() and name not in (MANIFEST_FILE, STATE_FILE):
            yield name


def _checksums(checkpoint: Path, names: list[str]) -> dict[str, str]:
    with ThreadPoolExecutor(_THREADS) as threads:
        return dict(zip(names, threads.map(_checksum, [checkpoint / name for name in names]), strict=True))


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(file: Path) -> dict[str, str]:
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        kept = None
    if not isinstance(kept, dict):
        raise _damaged(file.parent, f"{file.name} cannot be read")
    return kept


def _damaged(checkpoint: Path, what: str) -> ConfigError:
    return ConfigError.at(
        "trainer.resume_from_path",
        Kind.CONFLICT,
        f"cannot resume from '{checkpoint}': {what}; name another checkpoint, with trainer.resume_mode=path and"
        " trainer.resume_from_path",
    )
