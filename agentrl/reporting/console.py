"""Terminal output of a run: a live panel, or one plain line per step if the output is not a terminal."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from agentrl.reporting.formatting import dropped_text, duration, num_tool_calls, number, percent, tool_outcomes
from agentrl.reporting.transcript import print_comparison, print_samples
from agentrl.security.visible_text import visible
from agentrl.telemetry.metrics import METRICS
from agentrl.telemetry.metrics.base import Metric
from agentrl.telemetry.metrics.timing import STEP_S
from agentrl.types.rollout import Outcome

__all__ = ["ConsoleTracker", "print_comparison", "print_samples", "sparkline"]

_BLOCKS, _ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "_.:-=+*#"
_RATE_STEPS = 20  # the time left is estimated from this number of latest steps


def _seconds(value: float) -> str:
    return number(round(value, 3))  # differences below a millisecond are negligible


_HISTORY_ROWS = ("reward", "success", "val success", "val reward", "loss")
_ROWS = ("response", "update", "critic", "speed", "engine", "preference", "kl", "kept", "sampling", "staleness")
"""Titles of the rows, from top to bottom. `agentrl.telemetry.metrics` declares the metrics of each row."""


def _shown(metric: Metric) -> Callable[[float], str]:
    """Return the number format of a metric."""
    return {"share": percent, "s": _seconds}.get(metric.unit, number)


def _in_row(title: str) -> tuple[tuple[str, str, Callable[[float], str]], ...]:
    """Return (name, text, number format) of the metrics in a row of the console."""
    placed = [(metric.console, metric) for metric in METRICS if metric.console and metric.console.title == title]
    placed.sort(key=lambda each: each[0].place)
    return tuple((metric.name, row.text, _shown(metric)) for row, metric in placed)


_WITH_HISTORY = tuple((title, name, write) for title in _HISTORY_ROWS for name, _, write in _in_row(title))
_JOINED = tuple((title, _in_row(title)) for title in _ROWS)


class ConsoleTracker:
    """Shows each step on the terminal. If the output is not a terminal, prints one line per step.

    Args:
        total_steps: number of steps of the run.
        live: whether to redraw a panel in place; None: only if the output is a terminal that can redraw.
        val_sampling: how validation rollouts are sampled, such as `greedy`; shown with the validation metrics.
    """

    def __init__(
        self,
        total_steps: int,
        title: str,
        clock: Callable[[], float] = time.monotonic,
        console: Console | None = None,
        live: bool | None = None,
        val_sampling: str | None = None,
    ) -> None:
        self._val_sampling = f"({val_sampling})" if val_sampling else ""
        self._total_steps = total_steps
        self._title = title
        self._clock = clock
        self._console = console or Console()
        self._start_s = clock()
        self._step = 0
        self._metrics: dict[str, float] = {}
        self._latest: dict[str, float] = {}  # last value of each metric: steps without validation lack some metrics
        self._history: dict[str, list[float]] = {name: [] for _, name, _ in _WITH_HISTORY}
        self._logged: deque[tuple[int, float]] = deque(maxlen=_RATE_STEPS)
        self._first = (0, 0.0)
        self._step_s: deque[float] = deque(maxlen=_RATE_STEPS)
        self._in_steps_s = 0.0
        self._live = self._start_live() if (_is_terminal(self._console) if live is None else live) else None
        if self._live is None:
            self._print(f"{title}: {total_steps} steps" if total_steps else title)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the metrics of `step`."""
        self._step = step
        self._metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self._latest |= self._metrics
        self._logged.append((step, self._clock()))
        if len(self._logged) == 1:
            self._first = self._logged[0]
        elif (step_s := self._metrics.get(STEP_S.name)) is not None:
            self._step_s.append(step_s)
            self._in_steps_s += step_s
        for name, values in self._history.items():
            values.extend([self._metrics[name]] if name in self._metrics else [])
        if self._live is None:
            self._print(" | ".join(self._line()))
        else:
            self._live.refresh()

    def log_warning(self, step: int, text: str) -> None:
        """Print a warning; above the panel if there is one."""
        line = Text(visible(f"warning at step {step}: {text}"), "yellow")
        self._console.print(line, soft_wrap=self._live is None)

    def close(self) -> None:
        """Stop redrawing; the last state stays on the screen."""
        if self._live is not None:
            self._live.stop()

    def _print(self, line: str) -> None:
        # soft_wrap: in a log, each step stays on one line
        self._console.print(line, soft_wrap=True, highlight=False, markup=False)

    def _start_live(self) -> Live:
        # redrawn twice a second, not only at each step, so that the panel is not frozen during a long step
        live = Live(get_renderable=self._panel, console=self._console, refresh_per_second=2)
        live.start(refresh=True)
        return live

    def _left_s(self) -> float | None:
        """Return the seconds left, estimated from the last steps; None if there is no estimate or no step is left."""
        if self._step >= self._total_steps or not self._logged:
            return None
        (first_step, first_s), (last_step, last_s) = self._logged[0], self._logged[-1]
        if last_step > first_step:
            pace_s: float | None = (last_s - first_s) / (last_step - first_step)
        else:
            pace_s = self._metrics.get(STEP_S.name)
        if self._step_s and last_step > self._first[0]:
            pace_s = sum(self._step_s) / len(self._step_s) + self._between_s()
        return None if pace_s is None else pace_s * (self._total_steps - self._step)

    def _between_s(self) -> float:
        """Return the mean seconds per step for validation and saving.

        The mean is over all steps since the first logged step, because only few steps validate or save.
        """
        (first_step, first_s), (last_step, last_s) = self._first, self._logged[-1]
        return max(0.0, last_s - first_s - self._in_steps_s) / (last_step - first_step)

    def _line(self) -> Iterator[str]:
        yield f"step {self._step:>{len(str(self._total_steps))}}/{self._total_steps}"
        for label, text, metric in _rows(self._metrics):
            yield f"{label} {text} {self._note(metric)}".rstrip()
        if (left_s := self._left_s()) is not None:
            yield f"{duration(left_s)} left"

    def _panel(self) -> RenderableType:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="dim", no_wrap=True, min_width=11)
        table.add_column(no_wrap=True, overflow="ellipsis")
        for label, text, metric in _rows(self._latest):
            note = self._note(metric)
            history = self._sparkline(self._history.get(metric, []), len(note))
            table.add_row(label, Text.assemble(f"{text:<9}", (history, "cyan"), (f" {note}".rstrip(), "dim")))
        body = Group(self._progress(), table if self._latest else Text("starting", "dim"))
        return Panel(body, title=Text(self._title, "bold"), title_align="left", border_style="blue", padding=(0, 1))

    def _progress(self) -> RenderableType:
        left_s = self._left_s()
        times = f"{duration(self._clock() - self._start_s)} elapsed" + (f", {duration(left_s)} left" if left_s else "")
        line = Table.grid(padding=(0, 2, 0, 0), expand=True)
        line.add_column(no_wrap=True)
        line.add_column(ratio=1)
        line.add_column(no_wrap=True, justify="right", style="dim")
        bar = ProgressBar(total=self._total_steps, completed=self._step, complete_style="blue", finished_style="green")
        line.add_row(Text(f"step {self._step}/{self._total_steps}", "bold"), bar, times)
        return line

    def _note(self, metric: str) -> str:
        """Return the note shown next to a metric."""
        return self._val_sampling if metric.startswith("val/") else ""

    def _sparkline(self, values: Sequence[float], taken: int) -> str:
        width = max(0, min(60, self._console.width - 28 - taken))
        return sparkline(values, width, _ASCII_BLOCKS if self._console.options.ascii_only else _BLOCKS)


def sparkline(values: Sequence[float], width: int, blocks: str = _BLOCKS) -> str:
    """Return a chart of at most `width` block characters; "" if `width` or the number of values is below 2."""
    width = min(width, len(values))
    if width < 2:
        return ""
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    size = max(map(abs, values)) or 1  # values are scaled first, because sums of huge numbers would overflow
    means = [sum(value / size for value in values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    return "".join(blocks[round((mean - low) / ((high - low) or 1) * (len(blocks) - 1))] for mean in means)


def _rows(metrics: Mapping[str, float]) -> Iterator[tuple[str, str, str]]:
    """Yield (label, text, metric) of each row to show. `metric` is "" if the row shows no history of a metric."""
    yield from ((label, write(metrics[name]), name) for label, name, write in _WITH_HISTORY if name in metrics)
    if num_tool_calls(metrics):
        yield "tools", _tools(metrics), ""
    for label, prefix in (("dropped", ""), ("val dropped", "val/")):
        if text := dropped_text(metrics, prefix):
            yield label, text, ""
    for label, parts in _JOINED:
        if text := ", ".join(form.format(write(metrics[name])) for name, form, write in parts if name in metrics):
            yield label, text, ""


def _tools(metrics: Mapping[str, float]) -> str:
    calls, counts = num_tool_calls(metrics), tool_outcomes(metrics)
    failed = [f"{outcome} {number(count)}" for outcome, count in counts.items() if outcome != Outcome.OK]
    return ", ".join([f"{number(calls)} calls", f"{percent(counts.get(Outcome.OK, 0) / calls)} ok", *failed])


def _is_terminal(console: Console) -> bool:
    """Return whether a panel can be redrawn. Rich's own check is not used: it is true in CI if FORCE_COLOR is set."""
    return console.file.isatty() and not console.is_dumb_terminal
