"""Runs in the viewer: indexes in memory, and access to the files on disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock

from agentrl.errors import AgentRLError, DataError
from agentrl.models.folder import tokenizer_file
from agentrl.run_folder.location import run_at
from agentrl.store import StoredRollout, TrajectoryStore
from agentrl.store.schema import CONFIG, TRAJECTORIES, VOCABULARY
from agentrl.telemetry.jsonl import METRICS_FILE
from agentrl.viewer.curves import Curves
from agentrl.viewer.index import Index
from agentrl.viewer.search import Search
from agentrl.viewer.tokens import TokenTexts, open_tokens

MAX_SEARCHES = 4
"""Maximum number of cached searches per run, so that several tabs can search and recent searches are reused."""

MAX_RUNS = 100
"""Maximum number of runs from a folder of runs; the newest runs are used."""

DEPTH = 3
"""Number of folder levels that are searched for runs. The runs `outputs/<experiment>/<time>` need two levels."""

_MARKS = (METRICS_FILE, "config.yaml", TRAJECTORIES)
"""A folder that contains any of these is a run folder. A run has at least one of them even before its first step."""


class ViewedRun:
    """One run, read-only.

    Args:
        where: the run's folder, or a folder with files of trajectories.
        tokenizer: folder of a tokenizer to use instead of the run's own tokenizer.
        name: name to show instead of the folder's path.

    Raises:
        DataError: `where` is neither a run's folder nor a folder with files of trajectories.
        ConfigError: `tokenizer` is not a tokenizer's folder.
    """

    def __init__(self, where: str, tokenizer: str | None = None, name: str | None = None) -> None:
        self.name = name or where
        self._folder = _checked(run_at(Path(where)))
        self._override = tokenizer and str(tokenizer_file(tokenizer))
        self._tokens: dict[tuple[str | None, ...], TokenTexts] = {}
        self._lock = Lock()
        self._searches: dict[str, Search] = {}
        self.curves = Curves(self._folder)
        self.index = Index(self._split_folders)

    def rollout(self, split: str, step: int, uid: str, number: int) -> tuple[StoredRollout, TokenTexts]:
        """Return one rollout and the texts of its tokens.

        Raises:
            DataError: the rollout does not exist, or its file cannot be read.
        """
        folder = split_folders(self._folder).get(split)
        if folder is None:
            raise DataError(f"'{self.name}' has no rollouts of '{split}'")
        store = TrajectoryStore(folder)
        stored = store.rollout(step, uid, number)
        return stored, self._tokens_of(store.provenance(step))

    def search(self, text: str) -> Search:
        """Return the search for `text`. A new search replaces the least recently used search in the cache."""
        with self._lock:
            search = self._searches.pop(text, None) or Search(text, self.index)
            self._searches[text] = search
            if len(self._searches) > MAX_SEARCHES:
                del self._searches[next(iter(self._searches))]
            return search

    def _split_folders(self) -> dict[str, Path]:
        if not self._folder.is_dir():
            raise DataError(f"the folder '{self._folder}' was deleted")
        return split_folders(self._folder)

    def _tokens_of(self, provenance: Mapping[str, str]) -> TokenTexts:
        """Return the tokenizer of a step. Steps with the same vocabulary and configuration share a cached tokenizer."""
        key = provenance.get(VOCABULARY), provenance.get(CONFIG)
        with self._lock:
            if key not in self._tokens:
                self._tokens[key] = self._open_tokens(provenance)
            return self._tokens[key]

    def _open_tokens(self, provenance: Mapping[str, str]) -> TokenTexts:
        try:
            return open_tokens(self._folder, provenance, self._override)
        except AgentRLError as error:
            return TokenTexts(None, f"{error}: tokens are shown as ids.")


def viewed_runs(places: Sequence[str], tokenizer: str | None = None) -> list[ViewedRun]:
    """Open the runs at `places`. A folder that is not a run is replaced by the runs inside it, newest first.

    Raises:
        DataError: a place contains no run.
        ConfigError: `tokenizer` is not a tokenizer's folder.
    """
    return [run for where in places for run in _runs_at(where, tokenizer)]


def _runs_at(where: str, tokenizer: str | None) -> list[ViewedRun]:
    folder = Path(where)
    if not folder.is_dir() or _is_run(folder) or split_folders(folder):
        return [ViewedRun(where, tokenizer)]
    found = sorted(_inside(folder, DEPTH), key=_changed_at, reverse=True)[:MAX_RUNS]
    names = [str(path.relative_to(folder)) for path in found]
    runs = [ViewedRun(str(path), tokenizer, name) for path, name in zip(found, names, strict=True)]
    return runs or [ViewedRun(where, tokenizer)]  # raises an error that explains why there is no run


def _inside(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the folders of runs. Links such as `latest` are not followed: their targets are found directly."""
    for path in (path for path in _folders(folder) if not path.is_symlink()):
        if (path / METRICS_FILE).exists() or (path / "config.yaml").exists() or split_folders(path):
            yield path
        elif depth > 1:
            yield from _inside(path, depth - 1)


def _changed_at(folder: Path) -> float:
    """Modification time of the run's metrics file; without this file, of the run's folder."""
    file = folder / METRICS_FILE
    return (file if file.exists() else folder).stat().st_mtime


def split_folders(folder: Path) -> dict[str, Path]:
    """Return a mapping from split to folder.

    The split folders are in `folder/trajectories`, or directly in `folder`, or `folder` itself is the only split.
    """
    for parent in (folder / TRAJECTORIES, folder):
        found = {path.name: path for path in _folders(parent) if TrajectoryStore(path).steps}
        if found:
            return found
    return {folder.resolve().name: folder} if TrajectoryStore(folder).steps else {}


def _checked(folder: Path) -> Path:
    if not folder.is_dir():
        near = [str(path) for path in _folders(folder.parent) if _is_run(path)]
        raise DataError(f"no such folder: '{folder}'{_hint(near)}")
    if not _is_run(folder) and not split_folders(folder):
        inside = [str(path) for path in _folders(folder) if _is_run(path)]
        raise DataError(
            f"'{folder}' is not a run folder: it has neither {METRICS_FILE} nor {TRAJECTORIES}{_hint(inside)}"
        )
    return folder


def _hint(paths: list[str]) -> str:
    return f"; runs nearby: {', '.join(paths[:5])}" if paths else ""


def _is_run(folder: Path) -> bool:
    return any((folder / mark).exists() for mark in _MARKS)


def _folders(parent: Path) -> Iterator[Path]:
    return (path for path in sorted(parent.glob("*")) if path.is_dir())
