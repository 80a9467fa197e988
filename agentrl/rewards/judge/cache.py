"""Cache of the judge's verdicts, in memory and in a folder that several processes may share."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias, cast
from uuid import uuid4
from weakref import WeakValueDictionary

from pydantic import JsonValue

_LOGGER = logging.getLogger(__name__)

MAX_KEPT = 100_000
"""Maximum number of verdicts in memory; the least recently used verdict is dropped first."""

Verdict: TypeAlias = dict[str, JsonValue]


def request_key(url: str, body: Mapping[str, JsonValue]) -> str:
    """Return the SHA-256 of the complete request, including model, prompt, schema and temperature."""
    whole = json.dumps([url, body], sort_keys=True, separators=(",", ":"))  # ASCII: lone surrogates are escaped
    return sha256(whole.encode()).hexdigest()


class VerdictCache:
    """Verdicts by `request_key`.

    Args:
        folder: folder of the files `<key[:2]>/<key>.json`. A file is written under a temporary name and renamed, so
            that no reader sees a partial file. None: cache in memory only.
        problem: returns why a verdict read from the folder is invalid, or None if it is valid.
    """

    def __init__(self, folder: Path | None, problem: Callable[[JsonValue], str | None]) -> None:
        self._folder, self._problem = folder, problem
        self._kept: OrderedDict[str, Verdict] = OrderedDict()
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._cannot_write = False

    @asynccontextmanager
    async def asking(self, key: str) -> AsyncIterator[None]:
        """Allow one request at a time per key: rollouts of a task with the same answer wait for the first verdict."""
        lock = self._asking.setdefault(key, asyncio.Lock())
        async with lock:
            yield

    def get(self, key: str) -> Verdict | None:
        """Return the cached verdict; None if it is missing or cannot be read."""
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        if self._folder is None or (found := self._read(self._path(key))) is None:
            return None
        return self._remember(key, found)

    def put(self, key: str, verdict: Verdict) -> None:
        """Store a verdict. A folder that cannot be written causes one warning, and the run continues."""
        self._remember(key, verdict)
        if self._folder is None or self._cannot_write:
            return
        try:
            _write(self._path(key), verdict)
        except OSError as error:
            self._cannot_write = True
            _LOGGER.warning("reward.judge.cache_dir: '%s' cannot be written: %s", self._folder, error.strerror)

    def _remember(self, key: str, verdict: Verdict) -> Verdict:
        self._kept[key] = verdict
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return verdict

    def _read(self, path: Path) -> Verdict | None:
        try:
            verdict = json.loads(path.read_text(encoding="utf-8"))
            why = self._problem(verdict)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            why = str(error)
        if why is None:
            return cast("Verdict", verdict)
        _LOGGER.warning("reward.judge.cache_dir: '%s' is ignored, and the judge is asked again: %s", path, why)
        return None

    def _path(self, key: str) -> Path:
        assert self._folder is not None  # checked by the callers
        return self._folder / key[:2] / f"{key}.json"


def _write(path: Path, verdict: Verdict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.stem}.{os.getpid()}.{uuid4().hex}.partial")
    try:
        aside.write_text(json.dumps(verdict), encoding="utf-8")
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
