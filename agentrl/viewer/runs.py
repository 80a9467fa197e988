"""The runs that are viewed: what of each is in memory, and where the rest is found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Lock

from agentrl.errors import AgentRLError, DataError
from agentrl.store import StoredRollout, TrajectoryStore
from agentrl.telemetry.jsonl import METRICS_FILE
from agentrl.viewer.curves import Curves
from agentrl.viewer.index import Index
from agentrl.viewer.search import Search
from agentrl.viewer.tokens import TokenTexts, open_tokens, tokenizer_file

TRAJECTORIES = "trajectories"
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
        self._tokens: TokenTexts | None = None
        self._lock = Lock()
        self._search: Search | None = None
        self.curves = Curves(self._folder)
        self.index = Index(lambda: split_folders(self._folder))

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
        with self._lock:
            if self._tokens is None:
                self._tokens = self._open_tokens(store.provenance(step))
            return stored, self._tokens

    def search(self, text: str) -> Search:
        """The search for `text`: the one under way, or a new one in its place."""
        with self._lock:
            if self._search is None or self._search.text != text:
                self._search = Search(text, self.index)
            return self._search

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
