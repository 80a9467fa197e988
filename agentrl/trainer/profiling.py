"""Profiles of complete steps: traces of torch.profiler, or ranges for nsys (Nsight Systems)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Protocol

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.cuda import nvtx
from torch.profiler import ProfilerActivity, profile

from agentrl.backends.fsdp.ranks import Ranks, joined
from agentrl.config.rules.unused import wrong
from agentrl.config.trainer import Profiler, TrainerConfig
from agentrl.errors import ConfigError, Kind
from agentrl.telemetry.timing import unannotated

NSYS = "nsys profile --trace=cuda,nvtx --capture-range=cudaProfilerApi --capture-range-end=repeat"


class Trace(Protocol):
    """A profile of one step in one process, started by the constructor."""

    def __init__(self, name: str) -> None: ...

    def stop(self) -> None:
        """End the profile."""

    def write(self, file: Path) -> None:
        """Write the stopped profile to `file`. Do nothing if another program, such as nsys, writes the profile."""


class TorchTrace:
    """A trace of torch.profiler, for chrome://tracing or ui.perfetto.dev."""

    def __init__(self, name: str) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler logs its start and stop to stderr
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
        # engine and backend compute on other threads; by default torch profiles only the calling thread
        config = _ExperimentalConfig(profile_all_threads=True)
        self._profile = profile(activities=activities, experimental_config=config)
        self._profile.start()

    def stop(self) -> None:
        """See `Trace.stop`."""
        self._profile.stop()

    def write(self, file: Path) -> None:
        """See `Trace.write`."""
        file.parent.mkdir(parents=True, exist_ok=True)
        self._profile.export_chrome_trace(str(file))


class NsysRange:
    """The range that nsys captures under `--capture-range=cudaProfilerApi`. nsys writes the report."""

    def __init__(self, name: str) -> None:
        torch.cuda.profiler.start()  # type: ignore[no-untyped-call]  # untyped in torch
        self._range = nvtx.range_start(name)

    def stop(self) -> None:
        """See `Trace.stop`."""
        torch.cuda.synchronize()
        nvtx.range_end(self._range)
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]  # untyped in torch

    def write(self, file: Path) -> None:
        """Do nothing: nsys writes the report."""


TRACES: dict[Profiler, type[Trace]] = {"torch": TorchTrace, "nsys": NsysRange}


class StepProfiler:
    """Profiles chosen steps: all threads, from collecting to publishing.

    With `torch`, the main process writes `<folder>/step-N.json`, and each other rank R writes `step-N-rank-R.json`. If
    a step fails, the context manager discards its profile.
    """

    def __init__(self, folder: Path, steps: Collection[int], profiler: Profiler = "torch") -> None:
        self._folder = folder
        self._steps = frozenset(steps)
        self._profiler = profiler
        self._trace: Trace | None = None

    def begin(self, step: int) -> None:
        """Start the profile of step `step`, if it is chosen."""
        if step not in self._steps:
            return
        name = f"step-{step}"
        if ranks := joined():
            ranks.each(_start_on_rank, [(self._profiler, name)] * ranks.size)
        self._trace = TRACES[self._profiler](name)

    def end(self, step: int) -> None:
        """Write the profile of step `step`, if there is one."""
        if self._trace is not None:
            _finish(self._trace, self._folder / f"step-{step}.json")
            self._trace = None
            if ranks := joined():
                ranks.each(_write_on_rank, [(self._folder / f"step-{step}",)] * ranks.size)

    def __enter__(self) -> StepProfiler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._trace is not None:
            self._trace.stop()


def check_profiler(config: TrainerConfig) -> None:
    """Check that the profiler can be used on this machine, and print a notice if the run was not started under nsys.

    Raises:
        ConfigError: `trainer.profiler=nsys` without a CUDA GPU or without nsys.
    """
    if config.profiler != "nsys" or not config.profile_steps:
        return
    if not torch.cuda.is_available():
        text = "needs a CUDA GPU, and this process has none: use torch"
        raise ConfigError(wrong("trainer.profiler", text, Kind.NOT_SUPPORTED, value="nsys"))
    if shutil.which("nsys") is None:
        text = "needs the command nsys of Nsight Systems, which is not on the PATH: install it, or use torch"
        raise ConfigError(wrong("trainer.profiler", text, Kind.NOT_SUPPORTED, value="nsys"))
    if not any(name.startswith("NSYS_") for name in os.environ):
        print(f"trainer.profiler=nsys: start the run under nsys to get a report: `{NSYS} agentrl train …`")


def phases(config: TrainerConfig) -> Callable[[str], AbstractContextManager[None]]:
    """Return a function that marks a phase of a step, such as `learn`, in nsys's profiles; without nsys, a no-op."""
    return _nvtx_range if config.profiler == "nsys" and config.profile_steps else unannotated


@contextmanager
def _nvtx_range(name: str) -> Iterator[None]:
    handle = nvtx.range_start(name)  # not range_push: phases of concurrent tasks are not nested
    try:
        yield
    finally:
        nvtx.range_end(handle)


def _finish(trace: Trace, file: Path) -> None:
    trace.stop()
    trace.write(file)


_TRACE = -1
"""Key of the trace in `Ranks.held`, the objects that a rank keeps."""


def _start_on_rank(ranks: Ranks, profiler: Profiler, name: str) -> None:
    if ranks.rank:
        ranks.held[_TRACE] = TRACES[profiler](name)


def _write_on_rank(ranks: Ranks, name: Path) -> None:
    if ranks.rank:
        _finish(ranks.held.pop(_TRACE), name.with_name(f"{name.name}-rank-{ranks.rank}.json"))
