"""The Python door: train, roll out and evaluate with functions and rows instead of files. Works in a notebook too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ParamSpec, TypeAlias, TypeVar

from agentrl.attempt import Group
from agentrl.config import RunConfig, validate_config
from agentrl.config.rules import check_evaluation, check_training
from agentrl.data.given import Data, given_files
from agentrl.errors import ConfigError, DataError
from agentrl.rewards.loading import RewardLike, given_reward
from agentrl.tools.base import BaseTool
from agentrl.tools.function import FunctionTool
from agentrl.tools.loading import given_tools
from agentrl.trainer.elsewhere import call_elsewhere
from agentrl.trainer.files import write_whole
from agentrl.trainer.rollout_parts import Brought
from agentrl.trainer.run import run_evaluation, run_rollouts, run_training

P = ParamSpec("P")
R = TypeVar("R")
Tools: TypeAlias = Iterable[Callable[..., object] | FunctionTool | BaseTool]


def train(
    model: str | Path,
    data: Data,
    *,
    tools: Tools = (),
    reward: RewardLike = None,
    val_data: Data = (),
    settings: Mapping[str, object] | None = None,
) -> Path:
    """Train `model` on `data`; returns the run's folder, whose `checkpoints/latest` is the trained model.

        agentrl.train("Qwen/Qwen3-0.6B", "train.parquet", tools=[search], reward=score, settings={"rollout.n": 8})

    Args:
        tools: typed functions, or tools. With tools, rows that name no agent loop get `tool_agent`.
        settings: further keys of the configuration, dotted or nested, as on the command line.

    Raises:
        AgentRLError: something cannot be used as given.
    """
    config = _config(model, settings, tools := given_tools(tools), train_files=data, val_files=val_data)
    check_training(config)
    return _outside_loop(run_training, config, _brought(tools, reward, config))


def evaluate(
    model: str | Path,
    data: Data,
    *,
    tools: Tools = (),
    reward: RewardLike = None,
    settings: Mapping[str, object] | None = None,
) -> dict[str, float]:
    """Roll `model` out on `data` as validation does; the metrics, named `val/...`. Arguments as in `train`."""
    config = _config(model, settings, tools := given_tools(tools), val_files=data)
    check_evaluation(config)
    return _outside_loop(run_evaluation, config, _brought(tools, reward, config))


def rollout(
    model: str | Path,
    data: Data,
    *,
    tools: Tools = (),
    reward: RewardLike = None,
    n: int = 1,
    settings: Mapping[str, object] | None = None,
) -> list[Group]:
    """`n` rollouts of every task, sampled as in training: groups in the order of the rows. Writes no files."""
    with TemporaryDirectory() as folder:
        settings = {"trainer.default_local_dir": folder, "data.shuffle": False, **_keys(settings), "rollout.n": n}
        config = _config(model, settings, tools := given_tools(tools), train_files=data)
        return _outside_loop(run_rollouts, config, _brought(tools, reward, config))


def _brought(tools: Sequence[FunctionTool | BaseTool], reward: RewardLike, config: RunConfig) -> Brought:
    return Brought(tools, given_reward(reward, config.reward, config.data.max_response_length))


def _config(
    model: str | Path, settings: Mapping[str, object] | None, tools: Sequence[FunctionTool | BaseTool], **data: Data
) -> RunConfig:
    if not isinstance(model, (str, Path)):
        raise ConfigError(f"model must be a folder or a name on the hub, not a {type(model).__name__}")
    values: dict[str, object] = {"model.path": str(model)}
    if tools:
        values["rollout.agent.default_agent_loop"] = "tool_agent"
    nested = _nested(values | _keys(settings))
    folder = validate_config(nested).trainer.run_dir / "data"
    return validate_config(_nested(_files(data, folder), nested))


def _keys(settings: Mapping[str, object] | None) -> dict[str, object]:
    if not isinstance(settings, Mapping | None) or not all(isinstance(key, str) for key in settings or ()):
        raise ConfigError(f"settings must be a dict such as {{'rollout.n': 8}}, not {settings!r:.100}")
    return dict(settings or {})


def _files(data: Mapping[str, Data], folder: Path) -> dict[str, list[str]]:
    """Each key that has files with them; the first is `data`, which must not be empty."""
    files: dict[str, list[str]] = {}
    for key, rows in data.items():
        name = "val_data" if files else "data"
        given, lines = given_files(rows, name)
        if given or lines:
            files[f"data.{key}"] = given or [_kept(lines, folder, key.removesuffix("_files"))]
        elif not files:
            raise DataError("data is empty: expected files or rows")
    return files


def _kept(lines: str, folder: Path, purpose: str) -> str:
    """Keep rows in the run's folder. Their digest is in the name: other rows are another file, which resuming refuses.

    Raises:
        ConfigError: the folder cannot be written, or the file there was changed.
    """
    path = folder / f"{purpose}-{sha256(lines.encode()).hexdigest()[:12]}.jsonl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_whole(path, lines)
        elif path.read_text(encoding="utf-8") != lines:
            raise ConfigError(f"'{path}' is not as it was written: delete it, or give the rows a folder of their own")
    except OSError as error:
        raise ConfigError(f"'trainer.default_local_dir': cannot write to '{folder}': {error.strerror}") from error
    return str(path)


def _nested(values: Mapping[str, object], into: Mapping[str, object] | None = None) -> dict[str, object]:
    """{"a.b": 1} as {"a": {"b": 1}}, laid over `into`."""
    result = dict(into or {})
    for key, value in values.items():
        head, _, rest = key.partition(".")
        inner = {rest: value} if rest else value
        if isinstance(inner, Mapping):
            before = result.get(head)
            result[head] = _nested(inner, before if isinstance(before, Mapping) else None)
        else:
            result[head] = inner
    return result


def _outside_loop(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call it where it may start an event loop: in a notebook, whose thread runs one already, on another thread."""
    return call_elsewhere(function, *args, **kwargs) if _in_loop() else function(*args, **kwargs)


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
