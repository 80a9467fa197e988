"""report.html: a run's curves, its figures before and after, and samples of what the agent did, in one file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from jinja2 import Environment
from markupsafe import Markup
from pydantic import JsonValue

from agentrl.config.reward import RewardConfig
from agentrl.errors import DataError
from agentrl.store import TrajectoryStore
from agentrl.store.schema import TRAJECTORIES
from agentrl.telemetry.jsonl import METRICS_FILE, read_metrics
from agentrl.trainer.charts import charts
from agentrl.trainer.checkpoint import read_best
from agentrl.trainer.drawing import HEIGHT, WIDTH, draw
from agentrl.trainer.environment import ENVIRONMENT_FILE, read_environment, repeats_told
from agentrl.trainer.figures import compare, duration, first_and_last, moment, number
from agentrl.trainer.files import write_whole
from agentrl.trainer.hacking import NUM_SHOWN, TALLY_COLUMNS, Disagreements, of_run, tally_rows, worst
from agentrl.trainer.html import html_templates
from agentrl.trainer.sample_view import SampleView, visible

SAMPLES_FILE, CONFIG_FILE, REPORT_FILE = "samples.json", "config.yaml", "report.html"

_SPECIAL_TOKEN = re.compile(r"(<[|｜][^<>\s]{1,40}[|｜]>)")
_FACTS = (
    ("model", "model.path"),
    ("algorithm", "algorithm.name"),
    ("tasks a step", "data.train_batch_size"),
    ("rollouts a task", "rollout.n"),
    ("learning rate", "actor.optim.lr"),
    ("seed", "trainer.seed"),
)


class Attempts(NamedTuple):
    """Samples of one task, side by side."""

    uid: str
    samples: list[SampleView]


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
    """Write the report: one file that loads nothing and runs nothing, whatever a model or a tool wrote into it.

    Args:
        config: the resolved configuration, secrets already taken out.
        history: rows of metrics.jsonl, each with its `step`.
        best: the step that was kept as the best, in words.
        repeats: whether the run would come out the same again, in words.
        hacking: what its guards were raised by, where they watched.
    """
    rows = merged(history)
    held_out = first_and_last(rows)
    main, rest = charts(rows)
    page = (
        _environment()
        .get_template("report.html.j2")
        .render(
            title=title,
            facts=[
                *_progress(rows, config),
                *([("best", best)] if best else []),
                *_facts(config),
                *([("repeats bit for bit", repeats)] if repeats else []),
            ],
            comparison=compare(*held_out) if held_out else [],
            moments=[moment(validation, "") for validation in held_out or ()],
            charts=[draw(chart) for chart in main],
            more_charts=[draw(chart) for chart in rest],
            guards=tally_rows(hacking) if hacking and hacking.suspects else [],
            guard_columns=TALLY_COLUMNS,
            suspects=worst(hacking, NUM_SHOWN) if hacking else [],
            num_suspects=len(hacking.suspects) if hacking else 0,
            tasks=list(_by_task(samples)),
            config=yaml.safe_dump(config, sort_keys=False, allow_unicode=True),
            width=WIDTH,
            height=HEIGHT,
        )
    )
    write_whole(path, page)


def report_from_run(run_dir: Path) -> Path:
    """Write `report.html` of a run from its own files, finished or not; a file that is not there yet is left out.

    Raises:
        DataError: the folder holds no metrics.jsonl.
    """
    metrics = run_dir / METRICS_FILE
    if not metrics.is_file():
        raise DataError(f"{run_dir}: not the folder of a run: it has no {METRICS_FILE}")
    path = run_dir / REPORT_FILE
    config = read_config(run_dir / CONFIG_FILE)
    best = read_best(run_dir)
    write_report(
        path,
        title=str(_lookup(config, "trainer.experiment_name") or run_dir.name),
        config=config,
        history=list(read_metrics(metrics)),
        samples=_read_samples(run_dir / SAMPLES_FILE),
        best=str(best) if best else None,
        repeats=repeats_told(read_environment(run_dir / ENVIRONMENT_FILE)),
        hacking=of_run(TrajectoryStore(run_dir / TRAJECTORIES / "train"), _threshold(config)),
    )
    return path


def _threshold(config: Mapping[str, JsonValue]) -> float:
    threshold = _lookup(config, "reward.success_threshold")
    return float(threshold) if isinstance(threshold, int | float) else RewardConfig().success_threshold


def merged(history: Iterable[Mapping[str, Any]]) -> list[dict[str, float]]:
    """One row a step, in order, of what is a finite number; a step that was redone counts as it was the last time."""
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
    environment.filters |= {"number": number, "dim_special_tokens": _dim_special_tokens}
    return environment


def _dim_special_tokens(text: str) -> Markup:
    """`text` escaped, with what looks like <|special|> tokens set back, so that the words stand out."""
    pieces = _SPECIAL_TOKEN.split(visible(text))
    # every second piece is a special token; % escapes what it puts in
    return Markup("").join(Markup("<i>%s</i>" if i % 2 else "%s") % piece for i, piece in enumerate(pieces))


def _progress(rows: Sequence[Mapping[str, float]], config: Mapping[str, JsonValue]) -> list[tuple[str, str]]:
    if not rows:
        return [("steps", "none yet")]
    total = _lookup(config, "trainer.total_training_steps")
    steps = f"{rows[-1]['step']:,.0f}" + (f" of {total:,}" if isinstance(total, int) else "")
    spent_s = sum(row.get("timing_s/step", 0.0) for row in rows)
    return [("steps", steps), ("time in steps", duration(spent_s))]


def _facts(config: Mapping[str, JsonValue]) -> list[tuple[str, str]]:
    return [(label, str(value)) for label, key in _FACTS if (value := _lookup(config, key)) is not None]


def _lookup(config: Mapping[str, JsonValue], key: str) -> JsonValue:
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value  # type: ignore[no-any-return]  # whatever the document holds there


def _by_task(samples: Sequence[SampleView]) -> Iterable[Attempts]:
    tasks: dict[str, list[SampleView]] = {}
    for sample in samples:
        tasks.setdefault(sample["uid"], []).append(sample)
    return (Attempts(uid, attempts) for uid, attempts in tasks.items())


def read_config(path: Path) -> dict[str, JsonValue]:
    """The kept configuration of a run; empty where there is none.

    Raises:
        DataError: the file is no YAML.
    """
    if not path.is_file():
        return {}
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not readable YAML: {str(error).splitlines()[0]}") from error
    return config if isinstance(config, dict) else {}


def _read_samples(path: Path) -> list[SampleView]:
    try:
        samples = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # not written yet, or half
        return []
    return [sample for sample in samples if isinstance(sample, dict) and "uid" in sample]  # type: ignore[misc]  # as written
