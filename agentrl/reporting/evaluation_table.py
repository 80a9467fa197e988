"""Evaluation tables for the terminal, 80 columns wide: results, pass@k, tools and stop reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl.reporting.evaluation import LEVEL, Evaluation, Summary
from agentrl.reporting.formatting import RESPONSE, TURNS, number, percent
from agentrl.security.visible_text import visible
from agentrl.stats.base import Estimate
from agentrl.telemetry.metrics.rewards import SUCCESS_ALL
from agentrl.telemetry.metrics.rollouts import TOOL_CALLS
from agentrl.types.rollout import Outcome

_NAME_WIDTH = 22
_SHOWN_SOURCES = 30


def print_evaluation(
    found: Evaluation, file: Path | str | None, console: Console | None = None, sampling: str | None = None
) -> None:
    """Print the tables, then notes on sampling and on excluded rollouts.

    Args:
        file: the file with all results; None if no file was written.
        sampling: how the rollouts were sampled; None if unknown.
    """
    console = console or Console()
    for table in filter(None, (_sources(found), _passing(found.overall), _tools(found.overall.metrics))):
        console.print(table)
    how = [f"sampling: {sampling}"] if sampling else []
    for line in (
        *how,
        *_lines(found.overall),
        f"all results: {file}" if file else "write all results with --json FILE",
    ):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def _sources(found: Evaluation) -> Table:
    table = _table("data source", "tasks", "rollouts", f"reward [{LEVEL:.0%}]", f"success [{LEVEL:.0%}]")
    shown = list(found.sources.items())[:_SHOWN_SOURCES]
    for name, summary in [*shown, *([("all", found.overall)] if len(found.sources) > 1 else [])]:
        table.add_row(
            _name(name),
            str(summary.num_tasks),
            str(summary.num_rollouts),
            _interval(summary.reward, number),
            _interval(summary.success, percent),
        )
    if left := len(found.sources) - len(shown):
        table.caption = f"{left} more data sources: see the file"
    return table


def _passing(summary: Summary) -> Table | None:
    if list(summary.pass_at_k) in ([], [1]):
        return None
    table = _table("k", "tasks", "pass@k: one of k", "pass^k: all of k")
    for k, one in summary.pass_at_k.items():
        table.add_row(str(k), str(one.num), _interval(one, percent), _interval(summary.pass_hat_k[k], percent))
    return table


def _tools(metrics: Mapping[str, float]) -> Table | None:
    calls = (name for name in metrics if name.startswith("tool/") and name.endswith("/calls"))
    names = [name.removeprefix("tool/").removesuffix("/calls") for name in calls]
    if not names:
        return None
    table = _table("tool", "calls", "ok", "else", "p50 s", "p95 s")
    for name in names:
        table.add_row(_name(name), *_tool({key: metrics[f"tool/{name}/{key}"] for key in _TOOL}))
    return table


_TOOL = ("calls", *(outcome.value for outcome in Outcome), "p50_s", "p95_s")


def _tool(figures: Mapping[str, float]) -> Iterator[str]:
    yield f"{figures['calls']:.0f}"
    yield percent(figures[Outcome.OK] / figures["calls"])
    failed = [(outcome.value, figures[outcome]) for outcome in Outcome if outcome is not Outcome.OK]
    yield ", ".join(f"{name} {count:.0f}" for name, count in failed if count)
    yield from (number(figures[key], 2) for key in ("p50_s", "p95_s"))


def _lines(summary: Summary) -> Iterator[str]:
    parts = {"turns": TURNS.metric, "response tokens": RESPONSE.metric, "tool calls": TOOL_CALLS.name}
    means = [f"{label} {number(summary.metrics[name])}" for label, name in parts.items() if name in summary.metrics]
    if means and summary.num_rollouts > summary.num_failed:
        yield f"mean per rollout: {', '.join(means)}"
    stops = {name.removeprefix("stop/"): share for name, share in summary.metrics.items() if name.startswith("stop/")}
    if any(stops.values()):
        ordered = sorted(stops.items(), key=lambda stop: -stop[1])
        yield f"stop reasons: {', '.join(f'{name} {percent(share)}' for name, share in ordered if share)}"
    if summary.num_failed:
        infra = f" ({summary.num_infra_failed} infrastructure failures)" if summary.num_infra_failed else ""
        yield f"failed: {summary.num_failed} of {summary.num_rollouts} rollouts{infra}, not in the results"
        if (of_all := summary.metrics.get(SUCCESS_ALL.name)) is not None:
            yield f"success if failed rollouts count as failures: {percent(of_all)}"
    if summary.num_empty:
        yield f"tasks without a scored rollout: {summary.num_empty} of {summary.num_tasks}"
    if summary.num_unscored:
        yield f"without a score: {summary.num_unscored} of {summary.num_rollouts} rollouts, not in the results"


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if not place or column == "else" else "right")
    return table


def _name(name: str) -> Text:
    """Shorten the name of a data source or of a tool, and make terminal control characters visible."""
    text = visible(name)
    return Text(text if len(text) <= _NAME_WIDTH else f"{text[: _NAME_WIDTH - 1]}…", no_wrap=True)


def _interval(estimate: Estimate | None, write: Callable[[float], str]) -> str:
    if estimate is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return write(estimate.value)
    return f"{write(estimate.value)} [{write(estimate.low)}, {write(estimate.high)}]"
