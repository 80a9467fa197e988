"""Profiler traces of complete steps, for chrome://tracing or ui.perfetto.dev."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from types import TracebackType

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile


class StepProfiler:
    """Writes `<folder>/step-N.json` for chosen steps: all threads, from collecting to publishing.

    As a context manager, it drops the trace of a step that failed.
    """

    def __init__(self, folder: Path, steps: Collection[int]) -> None:
        self._folder = folder
        self._steps = frozenset(steps)
        self._profile: profile | None = None

    def begin(self, step: int) -> None:
        """Start the trace of step `step`, if it is chosen."""
        if step not in self._steps:
            return
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler logs start and stop to stderr
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
        # engine and backend compute on other threads; by default torch profiles only the calling thread
        self._profile = profile(
            activities=activities, experimental_config=_ExperimentalConfig(profile_all_threads=True)
        )
        self._profile.start()

    def end(self, step: int) -> None:
        """Write the trace of step `step`, if there is one."""
        if self._profile is not None:
            self._profile.stop()
            self._folder.mkdir(parents=True, exist_ok=True)
            self._profile.export_chrome_trace(str(self._folder / f"step-{step}.json"))
            self._profile = None

    def __enter__(self) -> StepProfiler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._profile is not None:
            self._profile.stop()
