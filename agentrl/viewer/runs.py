"""The runs that are viewed: what of each is in memory, and where the rest is found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Lock

from agentrl.errors import AgentRLError, DataError
from agentrl.store import StoredRollout, TrajectoryStore
from agentrl.store.schema import CONFIG, TRAJECTORIES, VOCABULARY
from agentrl.telemetry.jsonl import METRICS_FILE
from agentrl.viewer.curves import Curves
from agentrl.viewer.index import Index
from agentrl.viewer.search import Search
from agentrl.viewer.tokens import TokenTexts, open_tokens, tokenizer_file

MAX_SEARCHES = 4
"""Of one run at a time: as many tabs may search it, and what was typed before is found again at once."""

_MARKS = (METRICS_FILE, "config.yaml", TRAJECTORIES, ".lock")
"""What makes a folder a run's, also before its first step."""


class ViewedRun:
    """One run, read and never written.

    Args:
        where: its folder, or one with files of trajectories.
        tokenizer: a folder, in place of the run's own tokenizer.

    Raises:
        DataError: it is no such folder.
        ConfigError: there is no such tokenizer.
    """

    def __init__(self, where: str, tokenizer: str | None = None) -> None:
        self.name = where
        self._folder = _checked(Path(where))
        self._override = tokenizer and str(tokenizer_file(tokenizer))
        self._tokens: dict[tuple[str | None, ...], TokenTexts] = {}
        self._lock = Lock()
        self._searches: dict[str, Search] = {}
        self.curves = Curves(self._folder)
        self.index = Index(self._split_folders)

    def rollout(self, split: str, step: int, uid: str, number: int) -> tuple[StoredRollout, TokenTexts]:
        """One rollout, and the texts of its tokens.

        Raises:
            DataError: there is none, or its file cannot be read.
        """
        folder = split_folders(self._folder).get(split)
        if folder is None:
            raise DataError(f"'{self.name}' has no rollouts of '{split}'")
        store = TrajectoryStore(folder)
        stored = store.rollout(step, uid, number)
        return stored, self._tokens_of(store.provenance(step))

    def search(self, text: str) -> Search:
        """The search for `text`: the one under way, or a new one in the place of the one longest not asked about."""
        with self._lock:
            search = self._searches.pop(text, None) or Search(text, self.index)
            self._searches[text] = search
            if len(self._searches) > MAX_SEARCHES:
                del self._searches[next(iter(self._searches))]
            return search

    def _split_folders(self) -> dict[str, Path]:
        if not self._folder.is_dir():
            raise DataError(f"there is no folder '{self.name}' any more")
        return split_folders(self._folder)

    def _tokens_of(self, provenance: Mapping[str, str]) -> TokenTexts:
        """Steps of one vocabulary, made by one configuration, share a tokenizer; others have their own."""
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


def split_folders(folder: Path) -> dict[str, Path]:
    """Split -> the folder of its files: under a run's `trajectories`, else in the folder itself or right under it."""
    for parent in (folder / TRAJECTORIES, folder):
        found = {path.name: path for path in _folders(parent) if TrajectoryStore(path).steps}
        if found:
            return found
    return {folder.resolve().name: folder} if TrajectoryStore(folder).steps else {}


def _checked(folder: Path) -> Path:
    if not folder.is_dir():
        near = [str(path) for path in _folders(folder.parent) if _is_run(path)]
        raise DataError(f"there is no folder '{folder}'{_hint(near)}")
    if not _is_run(folder) and not split_folders(folder):
        inside = [str(path) for path in _folders(folder) if _is_run(path)]
        raise DataError(
            f"'{folder}' is no run's folder: it has neither {METRICS_FILE} nor {TRAJECTORIES}{_hint(inside)}"
        )
    return folder


def _hint(paths: list[str]) -> str:
    return f"; runs near it: {', '.join(paths[:5])}" if paths else ""


def _is_run(folder: Path) -> bool:
    return any((folder / mark).exists() for mark in _MARKS)


def _folders(parent: Path) -> Iterator[Path]:
    return (path for path in sorted(parent.glob("*")) if path.is_dir())
