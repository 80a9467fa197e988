"""Progress of rollouts: a progress bar on a terminal, otherwise a plain line every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from agentrl.reporting.formatting import duration, number
from agentrl.rollouts.runner import RolloutRunner
from agentrl.types.rollout import Rollout

LINE_S = 10.0
"""Minimum number of seconds between two plain lines."""


class PlainProgress:
    """Prints at most one line every `LINE_S` seconds, and one line at the end.

    Args:
        total: total number of rollouts.
        done: number of rollouts that an earlier command already finished.
    """

    def __init__(self, total: int, done: int, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._done, self._before, self._failed = total, done, done, 0
        self._console, self._clock = console, clock
        self._start_s = self._printed_s = clock()

    def add(self, rollout: Rollout) -> None:
        """Count a finished rollout."""
        self._done += 1
        self._failed += rollout.failed
        now_s = self._clock()
        if self._done == self._total or now_s - self._printed_s >= LINE_S:
            self._printed_s = now_s
            self._console.print(self._line(now_s - self._start_s), soft_wrap=True, highlight=False, markup=False)

    def _line(self, elapsed_s: float) -> str:
        rate = (self._done - self._before) / elapsed_s if elapsed_s else 0.0
        left = f" | {duration((self._total - self._done) / rate)} left" if rate and self._done < self._total else ""
        failed = f" | {self._failed} failed" if self._failed else ""
        return f"rollouts {self._done}/{self._total} | {number(rate)}/s{left}{failed}"


class _Rate(ProgressColumn):
    """Rollouts per second."""

    def render(self, task: Task) -> Text:
        return Text(f"{number(task.speed)}/s" if task.speed else "", "dim")


@contextmanager
def rollout_progress(
    runner: RolloutRunner, total: int, done: int = 0, console: Console | None = None
) -> Iterator[None]:
    """Show the progress of `total` rollouts, of which `done` were already finished."""
    console = console or Console()
    try:
        if not console.file.isatty() or console.is_dumb_terminal:
            runner.on_end = PlainProgress(total, done, console).add
            yield
        else:
            with _bar(console) as bar:
                task = bar.add_task("rollouts", total=total, completed=done)
                runner.on_end = lambda rollout: bar.advance(task)
                yield
    finally:
        runner.on_end = None


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("rollouts"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn(), console=console
    )
