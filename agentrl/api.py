"""Python API: train, roll out and evaluate with functions and rows instead of files. Also works in notebooks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import TypeAlias

from agentrl.agent_loops.base import AgentLoop
from agentrl.concurrency.notebook import outside_loop
from agentrl.config import RunConfig, validate_config
from agentrl.config.python_settings import nested, plain_settings
from agentrl.config.rules.combinations import check_evaluation, check_training
from agentrl.data.in_memory import Data, given_files
from agentrl.errors import AgentRLError, ConfigError, DataError
from agentrl.interactions.base import BaseInteraction
from agentrl.registry import give
from agentrl.rewards.loading import RewardLike, given_reward
from agentrl.tools.base import BaseTool
from agentrl.tools.environments.spec import KEY as ENVIRONMENT_KEY
from agentrl.tools.environments.spec import has_reward
from agentrl.tools.function import FunctionTool
from agentrl.tools.loading import given_tools
from agentrl.trainer.builders.rollouts import UserObjects
from agentrl.trainer.evaluated import Evaluated
from agentrl.trainer.run import run_evaluation, run_rollouts, run_training
from agentrl.types.rollout import Group

Tools: TypeAlias = Iterable[Callable[..., object] | FunctionTool | BaseTool]
AnyReward: TypeAlias = str | RewardLike
"""The name of a built-in reward, or one or more reward functions."""
Loop: TypeAlias = str | type[AgentLoop] | Callable[..., AgentLoop] | None
Environment: TypeAlias = str | Callable[[], object] | None
"""An environment class, a function that returns an environment, or the name of an environment."""
Settings: TypeAlias = Mapping[str, object] | None

_ROW = re.compile(r"\S*data/(train|val)-[0-9a-f]{12}\.jsonl row (\d+)(?: \(line \d+\))?")
"""Pattern that finds, in error messages, the name of a row that was passed from Python.

The name consists of the file in which the run saves the row, and the row's number.
"""


def train(
    model: str | Path,
    data: Data,
    *,
    tools: Tools = (),
    reward: AnyReward = None,
    val_data: Data = (),
    agent_loop: Loop = None,
    interactions: Sequence[BaseInteraction] = (),
    environment: Environment = None,
    settings: Settings = None,
) -> Path:
    """Train `model` on `data`; return the run's folder, in which `checkpoints/latest` is the trained model.

        agentrl.train("Qwen/Qwen3-0.6B", "train.parquet", tools=[search], reward=score, settings={"rollout.n": 8})

    Args:
        tools: functions with type hints, or tool objects. With tools, the default agent loop is `tool_agent`.
        reward: a function, several functions in TRL's form (their scores are summed), or the name of a built-in reward.
        agent_loop: a class, a function that makes an agent loop, or a name; for rows that name no agent loop.
        interactions: simulated users; rows select one by `interaction_kwargs.name`.
        environment: a class whose methods are tools; each rollout has its own object. If no other reward is given, the
            environment's reward is the score.
        settings: other configuration keys, dotted or nested, as on the command line. If the value of a key is a name,
            you can pass an object instead: `{"algorithm.adv_estimator": my_estimator}`.

    Raises:
        AgentRLError: an argument is invalid.
    """
    rows = {"train_files": data, "val_files": val_data}
    inputs = _Inputs(model, rows, tools, reward, agent_loop, interactions, environment, settings)
    check_training(inputs.config)
    with _rows_by_argument({"train": "data", "val": "val_data"}):
        return outside_loop(run_training, inputs.config, inputs.user_objects)


def evaluate(
    model: str | Path,
    data: Data,
    *,
    tools: Tools = (),
    reward: AnyReward = None,
    agent_loop: Loop = None,
    interactions: Sequence[BaseInteraction] = (),
    environment: Environment = None,
    settings: Settings = None,
    quiet: bool = False,
) -> Evaluated:
    """Validate `model` on `data`; return a mapping of the metrics `val/...`, with the attribute `.rollouts`.

    Args:
        quiet: print nothing. The other arguments have the same meaning as in `train`.
    """
    inputs = _Inputs(model, {"val_files": data}, tools, reward, agent_loop, interactions, environment, settings)
    check_evaluation(inputs.config)
    with _rows_by_argument({"val": "data"}), redirect_stdout(StringIO()) if quiet else nullcontext():
        return outside_loop(run_evaluation, inputs.config, inputs.user_objects, "summary")


def rollout(
    model: str | Path,
    data: Data,
    *,
    tools: Tools = (),
    reward: AnyReward = None,
    agent_loop: Loop = None,
    interactions: Sequence[BaseInteraction] = (),
    environment: Environment = None,
    n: int = 1,
    settings: Settings = None,
) -> list[Group]:
    """Generate `n` rollouts of each row; return one group per row, in the order of the rows.

    The model samples with the same settings as in training. No files are written.
    """
    settings = {"data.shuffle": False, **plain_settings(settings), "rollout.n": n}
    inputs = _Inputs(model, {"train_files": data}, tools, reward, agent_loop, interactions, environment, settings)
    with _rows_by_argument({"train": "data"}):
        return outside_loop(run_rollouts, inputs.config, inputs.user_objects)


@dataclass
class _Inputs:
    """The arguments of a call, split into a configuration and Python objects."""

    model: str | Path
    data: Mapping[str, Data]
    tools: Tools
    reward: AnyReward
    agent_loop: Loop
    interactions: Sequence[BaseInteraction]
    environment: Environment
    settings: Settings

    def __post_init__(self) -> None:
        if not isinstance(self.model, (str, Path)):
            raise ConfigError.keyless(f"model: expected a folder or a hub name, not a {type(self.model).__name__}")
        self.tools = given_tools(self.tools)
        _check_interactions(self.interactions)

    @cached_property
    def config(self) -> RunConfig:
        """The configuration of the call. `trainer.python_objects` lists Python objects, such as tools, only by name."""
        values: dict[str, object] = {"model.path": str(self.model)}
        if self.environment is not None:
            named = isinstance(self.environment, str)
            values[ENVIRONMENT_KEY] = self.environment if named else give(self.environment)
            values |= {"reward.name": "tool_rewards"} if self._environment_scores else {}
        if self.tools or self.environment is not None:
            values["rollout.agent.default_agent_loop"] = "tool_agent"
        values |= plain_settings(self.settings)
        if self.agent_loop is not None:
            loop = self.agent_loop if isinstance(self.agent_loop, str) else give(self.agent_loop)
            values["rollout.agent.default_agent_loop"] = loop
        if isinstance(self.reward, str):
            values["reward.name"] = self.reward
        values["trainer.python_objects"] = [*self._objects()]
        return validate_config(nested(self._rows[0], nested(values)))

    @property
    def _environment_scores(self) -> bool:
        """Whether the environment defines a reward and no other reward is given."""
        chosen = self.reward is not None or any(key.startswith("reward") for key in plain_settings(self.settings))
        return not chosen and has_reward(self.environment)

    @cached_property
    def user_objects(self) -> UserObjects:
        """The Python objects: tools, rewards, interactions and rows."""
        custom = None if isinstance(self.reward, str) else self.reward
        length, has_environment = (
            self.config.data.max_response_length,
            self.config.rollout.multi_turn.environment is not None,
        )
        reward = given_reward(custom, self.config.reward, length, has_environment=has_environment)
        return UserObjects(
            given_tools(self.tools), reward, self._rows[1], in_python=True, interactions=self.interactions
        )

    @cached_property
    def _rows(self) -> tuple[dict[str, list[str]], dict[str, str]]:
        return _files(self.data)

    def _objects(self) -> Iterator[str]:
        """Yield the names of the passed objects that have no configuration key."""
        yield from (f"tool {tool.name}" for tool in given_tools(self.tools))
        yield from (f"interaction {each.name}" for each in self.interactions)
        if self.reward is not None and not isinstance(self.reward, str):
            rewards = self.reward if isinstance(self.reward, Sequence) else [self.reward]
            yield from (f"reward {getattr(each, '__qualname__', type(each).__qualname__)}" for each in rewards)


def _check_interactions(interactions: Sequence[BaseInteraction]) -> None:
    for position, each in enumerate(interactions):
        if not isinstance(each, BaseInteraction):
            raise ConfigError.keyless(f"interactions[{position}] must be a BaseInteraction instance, not {each!r:.100}")


@contextmanager
def _rows_by_argument(arguments: Mapping[str, str]) -> Iterator[None]:
    """In error messages, replace the names of rows by positions in the caller's arguments, such as `data[3]`."""
    try:
        yield
    except AgentRLError as error:
        error.args = (_ROW.sub(lambda found: f"{arguments.get(found[1], found[1])}[{found[2]}]", str(error)),)
        raise


def _files(data: Mapping[str, Data]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return (key -> files, file -> rows as text).

    The first key holds the caller's argument `data`, which must not be empty. Other keys may be empty.
    """
    files: dict[str, list[str]] = {}
    contents: dict[str, str] = {}
    for key, rows in data.items():
        name = "val_data" if files else "data"
        given, lines = given_files(rows, name)
        if lines:
            place = f"data/{key.removesuffix('_files')}-{sha256(lines.encode()).hexdigest()[:12]}.jsonl"
            contents[place] = lines
            given = [place]
        if given:
            files[f"data.{key}"] = given
        elif not files:
            raise DataError("data is empty: expected files or rows")
    return files, contents
