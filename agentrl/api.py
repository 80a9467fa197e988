"""The Python door: train, roll out and evaluate with functions and rows instead of files. Works in a notebook too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ParamSpec, TypeAlias, TypeVar

from pydantic import JsonValue

from agentrl.config import RunConfig, validate_config
from agentrl.config.rules import check_evaluation, check_training
from agentrl.errors import ConfigError
from agentrl.rewards.base import Reward
from agentrl.rewards.function import FunctionReward
from agentrl.rewards.reward_funcs import RewardFuncs, takes_completions
from agentrl.tools.base import BaseTool
from agentrl.tools.function import FunctionTool, as_tool
from agentrl.trainer.rollout_parts import Brought
from agentrl.trainer.run import run_evaluation, run_rollouts, run_training
from agentrl.trajectory import Group

P = ParamSpec("P")
R = TypeVar("R")
Data: TypeAlias = str | Path | Sequence[str | Path] | Sequence[Mapping[str, JsonValue]]
"""Files, or rows as a file would hold them."""
Tools: TypeAlias = Iterable[Callable[..., object] | FunctionTool | BaseTool]
RewardLike: TypeAlias = Callable[..., object] | Sequence[Callable[..., object]] | None
"""`compute_score(data_source, solution_str, ground_truth, extra_info)`, or one or several of TRL's
`reward_func(prompts, completions, **columns)`, which are added up; None chooses by the rows' data_source."""


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
    config = _config(model, settings, tools := _tools(tools), train_files=data, val_files=val_data)
    check_training(config)
    return _outside_loop(run_training, config, Brought(tools, _reward(reward, config)))


def evaluate(
    model: str | Path,
    data: Data,
    *,
    tools: Tools = (),
    reward: RewardLike = None,
    settings: Mapping[str, object] | None = None,
) -> dict[str, float]:
    """Roll `model` out on `data` as validation does; the metrics, named `val/...`. Arguments as in `train`."""
    config = _config(model, settings, tools := _tools(tools), val_files=data)
    check_evaluation(config)
    return _outside_loop(run_evaluation, config, Brought(tools, _reward(reward, config)))


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
        settings = {"trainer.default_local_dir": folder, "data.shuffle": False, **(settings or {}), "rollout.n": n}
        config = _config(model, settings, tools := _tools(tools), train_files=data)
        return _outside_loop(run_rollouts, config, Brought(tools, _reward(reward, config)))


def _config(
    model: str | Path, settings: Mapping[str, object] | None, tools: Sequence[FunctionTool | BaseTool], **data: Data
) -> RunConfig:
    values: dict[str, object] = {"model.path": str(model)}
    if tools:
        values["rollout.agent.default_agent_loop"] = "tool_agent"
    nested = _nested(values | dict(settings or {}))
    folder = validate_config(nested).trainer.run_dir / "data"
    files = {f"data.{key}": _files(rows, folder / f"{key.removesuffix('_files')}.jsonl") for key, rows in data.items()}
    return validate_config(_nested(files, nested))


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


def _files(data: Data, path: Path) -> list[str]:
    """Names of files; rows are written to `path`, so that the run's folder holds what it was trained on."""
    if isinstance(data, (str, Path)):
        return [str(data)]
    rows = [item for item in data if isinstance(item, Mapping)]
    if rows and len(rows) < len(data):
        raise ConfigError("data must be files or rows, not both")
    if not rows:
        return [str(item) for item in data]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return [str(path)]


def _tools(tools: Tools) -> tuple[FunctionTool | BaseTool, ...]:
    return tuple(tool if isinstance(tool, (FunctionTool, BaseTool)) else as_tool(tool) for tool in tools)


def _reward(reward: RewardLike, config: RunConfig) -> Reward | None:
    if reward is None:
        return None
    functions = list(reward) if isinstance(reward, Sequence) else [reward]
    kwargs, timeout_s = config.reward.custom_reward_function.reward_kwargs, config.reward.timeout_s
    if all(map(takes_completions, functions)):
        return RewardFuncs(functions, timeout_s)
    if len(functions) > 1:
        raise ConfigError("several rewards must each take (prompts, completions, **columns)")
    return FunctionReward(functions[0], kwargs, timeout_s, functions[0].__name__)


def _outside_loop(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call it where it may start an event loop: in a notebook, whose thread runs one already, on another thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return function(*args, **kwargs)
    with ThreadPoolExecutor(1) as elsewhere:
        return elsewhere.submit(function, *args, **kwargs).result()
