"""Model card of a trained model: base model, training configuration and validation metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentrl.config.document import without_secrets
from agentrl.saved.run import Run
from agentrl.utils.yaml_text import yaml_text
from agentrl.version import __version__

_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_SHOWN = 30


def model_card(run: Run, step: int) -> str:
    """Return README.md for the checkpoint of `step`: hub metadata, validation metrics and the configuration.

    Secrets are removed from the configuration. Absolute paths are shortened to the file name.
    """
    config = _shareable(without_secrets(run.config))
    head = {"library_name": "transformers", "tags": ["agentrl", "reinforcement-learning"], **_base(run.config)}
    parts = [
        f"---\n{yaml_text(head)}---",
        f"# {_of(config, 'trainer', 'experiment_name') or 'A model trained with agentrl'}",
        f"Trained with agentrl {__version__} from `{_of(config, 'model', 'path')}`, algorithm"
        f" `{_of(config, 'algorithm', 'name')}`, {step} steps.",
        *_metrics(run, step),
        "## Configuration\n\n```yaml\n" + yaml_text(config).replace("```", "'''") + "```",
    ]
    return "\n\n".join(parts) + "\n"


def _base(config: Mapping[str, Any]) -> dict[str, str]:  # Any: plain values
    """Return the card's field `base_model` if `model.path` is a name on the hub, else an empty dictionary."""
    name = str(_of(config, "model", "path"))
    return {"base_model": name} if _NAME.fullmatch(name) and not Path(name).exists() else {}


def _of(config: Mapping[str, Any], section: str, key: str) -> object:
    inside = config.get(section)
    return inside.get(key, "") if isinstance(inside, Mapping) else ""


def _metrics(run: Run, step: int) -> Iterator[str]:
    rows = [row for row in run.metrics if isinstance(row.get("step"), int) and row["step"] <= step]
    found = {name: value for row in rows for name, value in row.items() if _is_figure(name, value)}
    if found:
        lines = [f"| `{name}` | {value:.4g} |" for name, value in [*found.items()][:_SHOWN]]
        yield "## Validation\n\n| metric | last value |\n| --- | --- |\n" + "\n".join(lines)


def _is_figure(name: str, value: object) -> bool:
    return re.fullmatch(r"val/[\w/@^.-]+", name) is not None and isinstance(value, int | float)


def _shareable(value: Any) -> Any:  # Any: plain values
    if isinstance(value, Mapping):
        return {key: _shareable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shareable(inner) for inner in value]
    return Path(value).name if isinstance(value, str) and value.startswith(("/", "~")) else value
