"""Cache of indexes in the user's cache folder. The key is a hash of the documents and the settings."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import file_digest, sha256
from importlib.metadata import version
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.tools.search.documents import document_files, passages
from agentrl.tools.search.index import PassageIndex, build_index
from agentrl.utils.atomic_files import atomic_folder

_FORMAT = 1
_MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """Settings of an index; the index also depends on the documents.

    Attributes:
        passage_words: maximum number of words of a passage.
        k1: term-frequency saturation of BM25: the smaller, the less a repeated word counts.
        b: length normalisation of BM25, from 0 (none) to 1.
    """

    passage_words: int
    k1: float
    b: float


def load_index(documents: Path, settings: IndexSettings) -> PassageIndex:
    """Return the index of a folder or file. The index is built if it is not in the cache.

    Raises:
        AgentRLError: there are no documents, a document cannot be read, or the cache folder cannot be written.
    """
    files = document_files(documents)
    folder = cache_folder() / _key(files, documents, settings)
    with _locked(folder):
        if (index := _kept(folder)) is None:
            shutil.rmtree(folder, ignore_errors=True)
            _build(files, documents, settings, folder)
            index = PassageIndex(folder)
    print(f"search: {len(index):,} passages of '{documents}'", flush=True)
    return index


def cache_folder() -> Path:
    """Return the folder of all indexes: `agentrl/search` in $XDG_CACHE_HOME, or in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentrl/search"


def _key(files: list[Path], documents: Path, settings: IndexSettings) -> str:
    """Return a hash of the names and contents of all files, and of everything else that the index depends on."""
    key = sha256(json.dumps([_FORMAT, version("bm25s"), asdict(settings)]).encode())
    for file in files:
        name = file.name if file == documents else file.relative_to(documents).as_posix()
        key.update(json.dumps([name, _digest(file)]).encode())
    return key.hexdigest()[:32]


def _build(files: list[Path], documents: Path, settings: IndexSettings, folder: Path) -> None:
    print(f"search: indexing '{documents}' ({len(files):,} files)", flush=True)
    start_s = time.perf_counter()
    with atomic_folder(folder) as aside:
        found = passages(files, settings.passage_words)
        if not build_index(found, aside, k1=settings.k1, b=settings.b):
            raise ConfigError.keyless(f"the documents of '{documents}' contain no words")
        digests = {path.name: _digest(path) for path in sorted(aside.iterdir())}
        (aside / _MANIFEST).write_text(json.dumps(digests, indent=2), encoding="utf-8")
    print(f"search: indexed in {time.perf_counter() - start_s:.1f} s, kept in '{folder}'", flush=True)


def _kept(folder: Path) -> PassageIndex | None:
    """Return the index saved in `folder`; None if there is no index, or the files of the index have changed."""
    try:
        digests = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        changed = any(_digest(folder / name) != digest for name, digest in digests.items())
        return None if changed else PassageIndex(folder)
    except (OSError, ValueError, AttributeError):
        return None


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return file_digest(opened, "sha256").hexdigest()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time build the index of this folder."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_suffix(".lock").open("w")
    except OSError as error:
        why = f"'{folder.parent}' cannot be written ({error.strerror}): set XDG_CACHE_HOME to a folder for indexes"
        raise ConfigError.keyless(why) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
