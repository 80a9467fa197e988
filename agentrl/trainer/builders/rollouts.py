"""Builds the rollout components from the configuration (chat, tools, reward, engine), for training and evaluation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from agentrl.capabilities import engine_spec
from agentrl.chat.encode import token_pieces
from agentrl.chat.format import ChatFormat
from agentrl.config import RunConfig
from agentrl.config.reward import NO_REWARD, RewardConfig
from agentrl.config.rollout import RolloutConfig
from agentrl.data.prompt_length import Measure, fit_prompt, fit_prompts
from agentrl.data.tasks import TaskTable, load_tasks
from agentrl.engines.base import Engine, SamplingParams, load_engine
from agentrl.errors import ConfigError, Kind
from agentrl.interactions.base import BaseInteraction
from agentrl.interactions.loading import load_interactions
from agentrl.models.images import ImageInputs, find_image_inputs
from agentrl.models.loading import check_model, load_tokenizer
from agentrl.rewards.base import Reward, close_reward
from agentrl.rewards.loading import check_data_source, load_reward
from agentrl.rollouts.collector import Attempt, attempts_at, collect, group_of, roll_out
from agentrl.rollouts.row_check import RowCheck
from agentrl.rollouts.runner import RolloutRunner
from agentrl.tools.agent_tool import agent_tools
from agentrl.tools.base import BaseTool
from agentrl.tools.function import FunctionTool
from agentrl.tools.toolbox import Toolbox, load_toolbox
from agentrl.trainer.sources.task_queue import Feed, open_feed
from agentrl.types.rollout import Group, Rollout
from agentrl.types.task import Task
from agentrl.utils.seeds import derive_seed

Collect = Callable[[Sequence[Task]], Awaitable[list[Group]]]


@dataclass(frozen=True, slots=True)
class UserObjects:
    """Objects that a Python caller passes. They extend or replace the objects that the configuration names.

    Attributes:
        rows: maps the name of a data file in the run folder to the text of this file.
        in_python: whether a Python program started the run, not the `agentrl` command.
    """

    tools: Sequence[FunctionTool | BaseTool] = ()
    reward: Reward | None = None
    rows: Mapping[str, str] = field(default_factory=dict)
    in_python: bool = False
    interactions: Sequence[BaseInteraction] = ()


def check_python_objects(config: RunConfig, user_objects: UserObjects) -> None:
    """Refuse to resume a run from the command line if it was started with Python objects.

    Raises:
        ConfigError: the run needs Python objects; the message names them.
    """
    if config.trainer.python_objects and not user_objects.in_python:
        named = ", ".join(config.trainer.python_objects)
        raise ConfigError.keyless(
            f"the run was started with Python objects ({named}): resume it with agentrl.train(...) and the same objects"
        )


@dataclass(frozen=True, slots=True)
class RolloutParts:
    """The components that roll out tasks, and the checked tasks.

    Attributes:
        slots: limits the number of concurrent rollouts of training and validation together.
        feed: the training tasks in their order; None if there are no training tasks.
    """

    config: RunConfig
    chat: ChatFormat
    toolbox: Toolbox
    engine: Engine
    runner: RolloutRunner
    train_tasks: TaskTable | None
    val_tasks: TaskTable | None
    slots: asyncio.Semaphore
    feed: Feed | None = None

    def attempts_train(self) -> Callable[[Task, int], list[Attempt]]:
        """Return a function that creates the attempts of a training task, without starting them.

        With ReMax, the greedy rollout is the last attempt.
        """
        config = self.config
        sampling, seed = sampling_of(config.rollout, "train"), derive_seed(config.trainer.seed, "train")
        greedy = config.algorithm.estimator == "remax"
        attempts: Callable[[Task, int], list[Attempt]] = partial(
            attempts_at, runner=self.runner, n=config.group_size, sampling=sampling, seed=seed, greedy_baseline=greedy
        )
        return self.feed.adding(attempts) if self.feed else attempts

    def group_of_train(self) -> Callable[[Task, Sequence[Rollout]], Group]:
        """Return a function that builds a group from the rollouts of a task's attempts."""
        return partial(group_of, n=self.config.group_size)

    def roll_out_train(self) -> Collect:
        """Return a function that rolls out tasks as in training. The function raises no error if all rollouts fail."""
        return partial(roll_out, self.attempts_train(), n=self.config.group_size, slots=self.slots)

    def collect_train(self) -> Collect:
        """Return a function that rolls out tasks as in training, but never adds the greedy rollout of ReMax."""
        return self._collect(self.config.group_size, sampling_of(self.config.rollout, "train"), "train")

    def collect_val(self) -> Collect:
        """Return a function that rolls out tasks as in validation: greedily, unless `val_kwargs.do_sample` is on."""
        return self._collect(self.config.rollout.val_kwargs.n, sampling_of(self.config.rollout, "val"), "val")

    def _collect(self, n: int, sampling: SamplingParams, purpose: str) -> Collect:
        seed = derive_seed(self.config.trainer.seed, purpose)
        return partial(collect, self.runner, n=n, sampling=sampling, seed=seed, slots=self.slots)


def sampling_of(rollout: RolloutConfig, split: str) -> SamplingParams:
    """Return the sampling parameters of `split` (`train` or `val`)."""
    if split != "val":
        return SamplingParams(rollout.temperature, rollout.top_p, rollout.top_k, rollout.min_p)
    val = rollout.val_kwargs
    return SamplingParams(val.temperature, val.top_p, val.top_k) if val.do_sample else SamplingParams(0.0)


@asynccontextmanager
async def open_rollout_parts(
    config: RunConfig, user_objects: UserObjects, *, trains: bool = False
) -> AsyncIterator[RolloutParts]:
    """Build the rollout components, with cheap checks first, and close them at the end.

    Args:
        trains: whether the rollouts are used for training. If so, rows with images are refused.

    Raises:
        AgentRLError: data, tools, template, reward or model cannot be used as configured.
    """
    live = config.algorithm.live
    train_tasks = _tasks(config.data.train_files, config.data.train_max_samples, config) if live else None
    val_tasks = _tasks(config.data.val_files, config.data.val_max_samples, config)
    reward = user_objects.reward or (None if config.reward.name == NO_REWARD else _reward(config))
    interactions_path = config.rollout.multi_turn.interaction_config_path
    listed = load_interactions(interactions_path) if interactions_path else {}
    interactions = {**listed, **{each.name: each for each in user_objects.interactions}} or None
    chat = load_chat(config, trains=trains)
    async with AsyncExitStack() as stack:
        own = [*user_objects.tools, *agent_tools(config.rollout)]
        toolbox = load_toolbox(config.rollout.multi_turn, extra_tools=own)
        stack.push_async_callback(toolbox.close)
        await toolbox.start()
        if reward is not None:
            stack.callback(close_reward, reward)
        check = partial(_checked, config, user_objects, chat, toolbox, interactions)
        train_tasks, val_tasks = (check(tasks) if tasks else None for tasks in (train_tasks, val_tasks))
        feed = None
        if train_tasks:
            measure, _ = _measure(config, user_objects, chat, toolbox, interactions)
            feed = open_feed(config, train_tasks, partial(fit_prompt, measure=measure, config=config.data))
        engine = await load_engine(config, chat)
        stack.push_async_callback(engine.close)
        runner = RolloutRunner(engine, chat, toolbox, reward, config, interactions=interactions)
        stack.push_async_callback(runner.close)
        slots = asyncio.Semaphore(config.trainer.max_concurrent_rollouts)
        yield RolloutParts(config, chat, toolbox, engine, runner, train_tasks, val_tasks, slots, feed)


def _reward(config: RunConfig) -> Reward:
    return load_reward(reward_of(config), config.data.max_response_length)


def reward_of(config: RunConfig) -> RewardConfig:
    """Return the section `reward` of the configuration.

    With `rollout.deterministic`, `reward.reward_model.batch_size` is 1 unless it is set. With batch size 1, a
    rollout's score does not depend on other rollouts.
    """
    reward, model = config.reward, config.reward.reward_model
    if not config.rollout.deterministic or model.batch_size is not None:
        return reward
    return reward.model_copy(update={"reward_model": model.model_copy(update={"batch_size": 1})})


def load_chat(config: RunConfig, *, trains: bool = False) -> ChatFormat:
    """Load the chat template of the model's tokenizer, with the model's image processor if images are allowed."""
    tokenizer = load_tokenizer(config.model)
    if tokenizer is None:
        check_model(config.model)  # raises a clearer error if the model is incomplete
        raise ConfigError.at(
            "model.tokenizer_path",
            Kind.MISSING,
            f"model.path '{config.model.path}' has no tokenizer: set model.tokenizer_path",
        )
    images, why_not = find_images(config, trains=trains)
    variables = config.data.apply_chat_template_kwargs
    return ChatFormat(tokenizer, template_kwargs=variables, images=images, no_images=why_not)


def _tasks(files: Sequence[str], max_samples: int, config: RunConfig) -> TaskTable | None:
    if not files:
        return None
    return load_tasks(files, config.data, max_samples=max_samples, tokenizer=partial(load_tokenizer, config.model))


def _checked(
    config: RunConfig,
    user_objects: UserObjects,
    chat: ChatFormat,
    toolbox: Toolbox,
    interactions: Mapping[str, BaseInteraction] | None,
    tasks: TaskTable,
) -> TaskTable:
    """Check the tasks and shorten or drop prompts that are too long; print a notice about these prompts."""
    measure, rows = _measure(config, user_objects, chat, toolbox, interactions)
    fitting, notice = fit_prompts(tasks, measure, config.data)
    rows.finish()
    if notice:
        print(notice)
    return fitting


def _measure(
    config: RunConfig,
    user_objects: UserObjects,
    chat: ChatFormat,
    toolbox: Toolbox,
    interactions: Mapping[str, BaseInteraction] | None,
) -> tuple[Measure, RowCheck]:
    """Return (the `Measure` of prompt lengths, its `RowCheck`). Measuring a row also checks the row."""
    rows = RowCheck(chat, toolbox, config, interactions)

    def length_of(task: Task) -> int:
        if user_objects.reward is None:
            check_data_source(config.reward, task)
        return rows.prompt_length(task)

    return Measure(length_of, partial(token_pieces, chat.tokenizer), chat.template.control_tokens), rows


def print_few_rows(num_rows: int, config: RunConfig) -> None:
    """Print a notice if there are fewer rows than tasks per step."""
    if num_rows < (size := config.data.train_batch_size):
        print(f"the dataset has {num_rows} rows, fewer than data.train_batch_size={size}: a step repeats some rows")


_ROLLED_OUT = "use `agentrl generate` or `agentrl eval` for rows with images"


def find_images(config: RunConfig, *, trains: bool) -> tuple[ImageInputs | None, str]:
    """Return (the model's image processor, "") or (None, why images are refused).

    Raises:
        ConfigError: the model's processor cannot be read.
    """
    if trains:
        return None, f"training on images is not supported: {_ROLLED_OUT}"
    if not engine_spec(config.rollout.engine).images:
        return None, f"'rollout.engine={config.rollout.engine}' does not support images: use 'rollout.engine=torch'"
    images = find_image_inputs(config.model)
    return images, "" if images else f"the model at '{config.model.path}' does not support images, or has no processor"
