"""report.html: charts of a run, results before and after training, and sample rollouts, in one file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup
from pydantic import JsonValue

from agentrl.config.reward import RewardConfig
from agentrl.errors import DataError
from agentrl.reporting.chart_layout import BOTTOM, HEIGHT, WIDTH, draw
from agentrl.reporting.charts import charts, constants
from agentrl.reporting.formatting import compare, first_and_last, moment, number
from agentrl.reporting.guard_report import NUM_SHOWN, TALLY_COLUMNS, Disagreements, of_run, tally_rows, worst
from agentrl.reporting.html import html_templates
from agentrl.reporting.report_facts import facts_of, lookup, sampling_of
from agentrl.reporting.samples import SampleView, by_task
from agentrl.run_folder.checkpoints import read_best
from agentrl.run_folder.files import write_atomically
from agentrl.run_folder.layout import CONFIG_FILE, REPORT_FILE, SAMPLES_FILE
from agentrl.run_folder.saved_config import read_config
from agentrl.run_folder.saved_environment import ENVIRONMENT_FILE, read_environment, reproducibility_text
from agentrl.security.visible_text import visible
from agentrl.store import TrajectoryStore
from agentrl.store.schema import TRAJECTORIES
from agentrl.telemetry.jsonl import METRICS_FILE, read_metrics
from agentrl.types.rollout import GUARD
from agentrl.utils.yaml_text import yaml_text

_SPECIAL_TOKEN = re.compile(r"(<[|｜][^<>\s]{1,40}[|｜]>)")
_ABSENT = {"data_source": "", "ground_truth": None, "error": None, "num_turns": 0}
"""Values that the report shows for fields that a saved sample lacks."""


def write_report(
    path: Path,
    *,
    title: str,
    config: Mapping[str, JsonValue],
    history: Sequence[Mapping[str, Any]],
    samples: Sequence[SampleView] = (),
    best: str | None = None,
    repeats: str | None = None,
    hacking: Disagreements | None = None,
) -> None:
    """Write the report to one file without scripts or external resources. HTML in texts of models and tools is escaped.

    Args:
        config: the resolved configuration, with secrets removed.
        history: rows of metrics.jsonl, each with its `step`.
        best: the best saved step, as text.
        repeats: whether the run is reproducible, as text.
        hacking: rewarded rollouts that raised a guard; None or no such rollout: the report has no section on guards.
    """
    rows = merged(history)
    held_out = first_and_last(rows)
    main, rest = charts(rows)
    page = (
        _environment()
        .get_template("report.html.j2")
        .render(
            title=title,
            facts=facts_of(rows, config, best, repeats),
            sampling=sampling_of(config),
            comparison=compare(*held_out) if held_out else [],
            moments=[moment(validation, "") for validation in held_out or ()],
            charts=[draw(chart) for chart in main if not chart.is_constant],
            more_charts=[draw(chart) for chart in rest if not chart.is_constant],
            constants=constants(main),
            more_constants=constants(rest),
            guards=tally_rows(hacking) if hacking and hacking.suspects else [],
            guard_columns=TALLY_COLUMNS,
            suspects=worst(hacking, NUM_SHOWN) if hacking else [],
            num_suspects=len(hacking.suspects) if hacking else 0,
            tasks=by_task(samples),
            config=yaml_text(config),
            width=WIDTH,
            height=HEIGHT,
            bottom=BOTTOM,
        )
    )
    write_atomically(path, page)


def report_from_run(run_dir: Path) -> Path:
    """Write `report.html` of a run from its files. The run may be unfinished; missing files are skipped.

    Raises:
        DataError: the folder has no metrics.jsonl.
    """
    metrics = run_dir / METRICS_FILE
    if not metrics.is_file():
        raise DataError(f"{run_dir}: not a run folder: it has no {METRICS_FILE}")
    path = run_dir / REPORT_FILE
    config = read_config(run_dir / CONFIG_FILE)
    best = read_best(run_dir)
    write_report(
        path,
        title=str(lookup(config, "trainer.experiment_name") or run_dir.name),
        config=config,
        history=list(read_metrics(metrics)),
        samples=_read_samples(run_dir / SAMPLES_FILE),
        best=str(best) if best else None,
        repeats=reproducibility_text(read_environment(run_dir / ENVIRONMENT_FILE)),
        hacking=of_run(TrajectoryStore(run_dir / TRAJECTORIES / "train"), _threshold(config)),
    )
    return path


def _threshold(config: Mapping[str, JsonValue]) -> float:
    threshold = lookup(config, "reward.success_threshold")
    return float(threshold) if isinstance(threshold, int | float) else RewardConfig().success_threshold


def merged(history: Iterable[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Return one row per step, in order, with finite numbers only. Later rows of a step override earlier rows."""
    rows: dict[float, dict[str, float]] = {}
    for row in history:
        finite = {name: float(value) for name, value in row.items() if _is_finite_number(value)}
        if "step" in finite:
            rows.setdefault(finite["step"], {}).update(finite)
    return [rows[step] for step in sorted(rows)]


def _is_finite_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _environment() -> Environment:
    environment = html_templates(Path(__file__).parent)
    environment.filters |= {"number": number, "dim_special_tokens": _dim_special_tokens, "parts": _parts}
    return environment


def _parts(rewards: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return the reward components, and the guards that were raised; the score is left out."""
    return [
        (name, value) for name, value in rewards.items() if name != "score" and (value or not name.startswith(GUARD))
    ]


def _dim_special_tokens(text: str) -> Markup:
    """Escape `text` and mark <|special|> tokens, which the report shows dimmed."""
    pieces = _SPECIAL_TOKEN.split(visible(text))
    # every second piece is a special token; % escapes each piece
    return Markup("").join(Markup("<i>%s</i>" if i % 2 else "%s") % piece for i, piece in enumerate(pieces))


def _read_samples(path: Path) -> list[SampleView]:
    try:
        samples = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # not written yet, or incomplete
        return []
    return [_ABSENT | sample for sample in samples if _is_sample(sample)] if isinstance(samples, list) else []


def _is_sample(value: object) -> bool:
    """Return whether the report can show the sample. The file may contain invalid samples."""
    if not isinstance(value, dict) or not isinstance(value.get("uid"), str) or not _is_number(value.get("reward")):
        return False
    rewards, segments, calls = value.get("rewards"), value.get("segments"), value.get("tool_calls")
    return (
        isinstance(rewards, dict)
        and all(map(_is_number, rewards.values()))
        and _are_dicts(segments, ("author", "text"))
        and _are_dicts(calls, ("name", "outcome"))
        and isinstance(value.get("stop"), str)
        and _is_number(value.get("step", 0))
    )


def _are_dicts(values: object, texts: Sequence[str]) -> bool:
    """Return whether `values` is a list of dicts with the string fields `texts`."""
    return isinstance(values, list) and all(
        isinstance(each, dict) and all(isinstance(each.get(name), str) for name in texts) for each in values
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
