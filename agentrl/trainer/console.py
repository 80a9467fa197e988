"""The run on the terminal: a live panel, or one plain line a step where nobody watches."""

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

from agentrl.attempt import Outcome
from agentrl.trainer.figures import duration, num_tool_calls, number, percent, tool_outcomes
from agentrl.trainer.sample_view import visible
from agentrl.trainer.transcript import print_comparison, print_samples

__all__ = ["ConsoleTracker", "print_comparison", "print_samples", "sparkline"]

_BLOCKS, _ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "_.:-=+*#"
_RATE_STEPS = 20  # time left follows the last so many steps


def _seconds(value: float) -> str:
    return number(round(value, 3))  # less is no time at all


_WITH_HISTORY = (
    ("reward", "reward/mean", number),
    ("success", "success", percent),
    ("val success", "val/success", percent),
    ("val reward", "val/reward/mean", number),
    ("loss", "actor/loss", number),
)
_JOINED = (
    ("response", (("response_length/mean", "{} tokens", number), ("num_turns/mean", "{} turns", number))),
    ("update", (("actor/grad_norm", "grad norm {}", number), ("actor/lr", "lr {}", number))),
    (
        "critic",
        (
            ("critic/vf_explained_var", "{} explained", percent),
            ("critic/vf_loss", "loss {}", number),
            ("critic/lr", "lr {}", number),
        ),
    ),
    (
        "speed",
        (
            ("timing_s/step", "{} s/step", _seconds),
            ("timing_s/collect", "collect {}", _seconds),
            ("timing_s/wait_rollouts", "wait {}", _seconds),
            ("timing_s/learn", "learn {}", _seconds),
            ("perf/tokens_per_s", "{} tokens/s", number),
        ),
    ),
    (
        "engine",
        (
            ("engine/cached_share", "{} of the context cached", percent),
            ("mismatch/current/k3", "{} nats from the backend", number),
        ),
    ),
    ("preference", (("actor/accuracy", "{} right", percent), ("actor/margin", "margin {}", number))),
    ("kl", (("kl/reward_mean", "{} nats to the reference", number), ("kl/reward_coef", "times {}", number))),
    ("kept", (("kept/samples", "{} of the samples", percent),)),
    (
        "sampling",
        (("sampling/drawn", "{} groups drawn", number), ("sampling/filtered", "{} of them taught nothing", number)),
    ),
    ("staleness", (("staleness/mean", "{} versions", number), ("staleness/requeued", "{} groups begun again", number))),
)


class ConsoleTracker:
    """Shows each step on the terminal. Where the output is no terminal it prints one line a step.

    Args:
        total_steps: how many steps the run has.
        live: redraw a panel in place; None: when the output is a terminal that can.
    """

    def __init__(
        self,
        total_steps: int,
        title: str,
        clock: Callable[[], float] = time.monotonic,
        console: Console | None = None,
        live: bool | None = None,
    ) -> None:
        self._total_steps = total_steps
        self._title = title
        self._clock = clock
        self._console = console or Console()
        self._start_s = clock()
        self._step = 0
        self._metrics: dict[str, float] = {}
        self._latest: dict[str, float] = {}  # metrics that not every step has, such as validation, stay in view
        self._history: dict[str, list[float]] = {name: [] for _, name, _ in _WITH_HISTORY}
        self._logged: deque[tuple[int, float]] = deque(maxlen=_RATE_STEPS)
        self._live = self._start_live() if (_is_terminal(self._console) if live is None else live) else None
        if self._live is None:
            self._print(f"{title}: {total_steps} steps" if total_steps else title)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show `step`."""
        self._step = step
        self._metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self._latest |= self._metrics
        self._logged.append((step, self._clock()))
        for name, values in self._history.items():
            values.extend([self._metrics[name]] if name in self._metrics else [])
        if self._live is None:
            self._print(" | ".join(self._line()))
        else:
            self._live.refresh()

    def log_warning(self, step: int, text: str) -> None:
        """Print the line; above the panel where there is one."""
        line = Text(visible(f"warning at step {step}: {text}"), "yellow")
        self._console.print(line, soft_wrap=self._live is None)

    def close(self) -> None:
        """Leave the last state on the screen and give the terminal back."""
        if self._live is not None:
            self._live.stop()

    def _print(self, line: str) -> None:
        # soft_wrap: a log keeps a step on one line whatever its width
        self._console.print(line, soft_wrap=True, highlight=False, markup=False)

    def _start_live(self) -> Live:
        # redrawn twice a second, not only at each step, so that a long step is seen to be alive
        live = Live(get_renderable=self._panel, console=self._console, refresh_per_second=2)
        live.start(refresh=True)
        return live

    def _left_s(self) -> float | None:
        """Seconds left at the pace of the last steps; None before there is one."""
        if self._step >= self._total_steps or not self._logged:
            return None
        (first_step, first_s), (last_step, last_s) = self._logged[0], self._logged[-1]
        if last_step > first_step:
            pace_s: float | None = (last_s - first_s) / (last_step - first_step)
        else:
            pace_s = self._metrics.get("timing_s/step")
        return None if pace_s is None else pace_s * (self._total_steps - self._step)

    def _line(self) -> Iterator[str]:
        yield f"step {self._step:>{len(str(self._total_steps))}}/{self._total_steps}"
        yield from (f"{label} {text}" for label, text, _ in _rows(self._metrics))
        if (left_s := self._left_s()) is not None:
            yield f"{duration(left_s)} left"

    def _panel(self) -> RenderableType:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="dim", no_wrap=True, min_width=11)
        table.add_column(no_wrap=True, overflow="ellipsis")
        for label, text, metric in _rows(self._latest):
            history = self._sparkline(self._history.get(metric, []))
            table.add_row(label, Text.assemble(f"{text:<9}", (history, "cyan")))
        body = Group(self._progress(), table if self._latest else Text("starting", "dim"))
        return Panel(body, title=Text(self._title, "bold"), title_align="left", border_style="blue", padding=(0, 1))

    def _progress(self) -> RenderableType:
        left_s = self._left_s()
        times = f"{duration(self._clock() - self._start_s)} gone" + (f", {duration(left_s)} left" if left_s else "")
        line = Table.grid(padding=(0, 2, 0, 0), expand=True)
        line.add_column(no_wrap=True)
        line.add_column(ratio=1)
        line.add_column(no_wrap=True, justify="right", style="dim")
        bar = ProgressBar(total=self._total_steps, completed=self._step, complete_style="blue", finished_style="green")
        line.add_row(Text(f"step {self._step}/{self._total_steps}", "bold"), bar, times)
        return line

    def _sparkline(self, values: Sequence[float]) -> str:
        width = max(0, min(60, self._console.width - 28))
        return sparkline(values, width, _ASCII_BLOCKS if self._console.options.ascii_only else _BLOCKS)


def sparkline(values: Sequence[float], width: int, blocks: str = _BLOCKS) -> str:
    """`values` as at most `width` characters, from their lowest to their highest; "" for fewer than two."""
    width = min(width, len(values))
    if width < 2:
        return ""
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    size = max(map(abs, values)) or 1  # shares of it: sums of the largest numbers would be infinite
    means = [sum(value / size for value in values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    return "".join(blocks[round((mean - low) / ((high - low) or 1) * (len(blocks) - 1))] for mean in means)


def _rows(metrics: Mapping[str, float]) -> Iterator[tuple[str, str, str]]:
    """(label, text, metric whose history goes with it) of everything there is to show."""
    yield from ((label, write(metrics[name]), name) for label, name, write in _WITH_HISTORY if name in metrics)
    if num_tool_calls(metrics):
        yield "tools", _tools(metrics), ""
    if failed := metrics.get("rollouts/failed"):
        yield "failed", f"{percent(failed)} of the rollouts", ""
    for label, parts in _JOINED:
        if text := ", ".join(form.format(write(metrics[name])) for name, form, write in parts if name in metrics):
            yield label, text, ""


def _tools(metrics: Mapping[str, float]) -> str:
    calls, counts = num_tool_calls(metrics), tool_outcomes(metrics)
    failed = [f"{outcome} {number(count)}" for outcome, count in counts.items() if outcome != Outcome.OK]
    return ", ".join([f"{number(calls)} calls", f"{percent(counts.get(Outcome.OK, 0) / calls)} ok", *failed])


def _is_terminal(console: Console) -> bool:
    """Whether a panel can be redrawn; rich also says yes where FORCE_COLOR is set, as in some CI logs."""
    return console.file.isatty() and not console.is_dumb_terminal
