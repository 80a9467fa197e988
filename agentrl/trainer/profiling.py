"""Profiler traces of complete steps, for chrome://tracing or ui.perfetto.dev."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from types import TracebackType

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

from agentrl.backends.fsdp.ranks import Ranks, joined


class StepProfiler:
    """Writes `<folder>/step-N.json` for chosen steps: all threads, from collecting to publishing.

    With several processes, the others write `step-N-rank-R.json`. As a context manager, it drops the trace of a step
    that failed.
    """

    def __init__(self, folder: Path, steps: Collection[int]) -> None:
        self._folder = folder
        self._steps = frozenset(steps)
        self._profile: profile | None = None

    def begin(self, step: int) -> None:
        """Start the trace of step `step`, if it is chosen."""
        if step not in self._steps:
            return
        if ranks := joined():
            ranks.each(_start_on_rank, [()] * ranks.size)
        self._profile = _started()

    def end(self, step: int) -> None:
        """Write the trace of step `step`, if there is one."""
        if self._profile is not None:
            _write(self._profile, self._folder / f"step-{step}.json")
            self._profile = None
            if ranks := joined():
                ranks.each(_write_on_rank, [(self._folder / f"step-{step}",)] * ranks.size)

    def __enter__(self) -> StepProfiler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._profile is not None:
            self._profile.stop()


def _started() -> profile:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler logs start and stop to stderr
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    # engine and backend compute on other threads; by default torch profiles only the calling thread
    started = profile(activities=activities, experimental_config=_ExperimentalConfig(profile_all_threads=True))
    started.start()
    return started


def _write(finished: profile, file: Path) -> None:
    finished.stop()
    file.parent.mkdir(parents=True, exist_ok=True)
    finished.export_chrome_trace(str(file))


_PROFILE = -1
"""Number of the trace among the objects that a rank holds."""


def _start_on_rank(ranks: Ranks) -> None:
    if ranks.rank:
        ranks.held[_PROFILE] = _started()


def _write_on_rank(ranks: Ranks, name: Path) -> None:
    if ranks.rank:
        _write(ranks.held.pop(_PROFILE), name.with_name(f"{name.name}-rank-{ranks.rank}.json"))
