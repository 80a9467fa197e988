"""What rolls tasks out, from the configuration: chat, tools, reward, engine. Training and evaluation share it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from agentrl.attempt import Group
from agentrl.chat.format import ChatFormat
from agentrl.chat.pieces import token_pieces
from agentrl.config import RunConfig
from agentrl.config.reward import NO_REWARD
from agentrl.config.rollout import RolloutConfig
from agentrl.data.fitting import Measure, fit_prompts
from agentrl.data.tasks import TaskTable, load_tasks
from agentrl.engines.base import Engine, SamplingParams
from agentrl.engines.scripted import ScriptedEngine
from agentrl.engines.sglang.loader import load_sglang_engine
from agentrl.engines.torch_loader import load_torch_engine
from agentrl.errors import ConfigError
from agentrl.interactions.base import BaseInteraction
from agentrl.interactions.loading import load_interactions
from agentrl.models.loading import check_model, load_tokenizer
from agentrl.registry import load_object
from agentrl.rewards.base import Reward, close_reward
from agentrl.rewards.loading import check_data_source, load_reward
from agentrl.rollouts.collector import Attempt, attempts_at, collect
from agentrl.rollouts.row_check import RowCheck
from agentrl.rollouts.runner import RolloutRunner
from agentrl.seeds import derive_seed
from agentrl.task import Task
from agentrl.tools.base import BaseTool
from agentrl.tools.function import FunctionTool
from agentrl.tools.toolbox import Toolbox, load_toolbox

Collect = Callable[[Sequence[Task]], Awaitable[list[Group]]]


@dataclass(frozen=True, slots=True)
class Brought:
    """What a caller in Python brings as objects, beside or in place of what the configuration names."""

    tools: Sequence[FunctionTool | BaseTool] = ()
    reward: Reward | None = None


@dataclass(frozen=True, slots=True)
class RolloutParts:
    """What rolls tasks out, and the tasks, checked against it.

    Attributes:
        slots: one is held by each rollout under way, of training and of validation.
    """

    config: RunConfig
    chat: ChatFormat
    toolbox: Toolbox
    engine: Engine
    runner: RolloutRunner
    train_tasks: TaskTable | None
    val_tasks: TaskTable | None
    slots: asyncio.Semaphore

    def attempts_train(self) -> Callable[[Task, int], list[Attempt]]:
        """Rollouts of a task as training samples them, to be begun."""
        config = self.config
        sampling, seed = sampling_of(config.rollout, "train"), derive_seed(config.trainer.seed, "train")
        return partial(attempts_at, runner=self.runner, n=config.rollout.n, sampling=sampling, seed=seed)

    def collect_train(self) -> Collect:
        """Rolls tasks out as training samples them."""
        return self._collect(self.config.rollout.n, sampling_of(self.config.rollout, "train"), "train")

    def collect_val(self) -> Collect:
        """Rolls tasks out as validation samples them: greedily, unless `do_sample` is on."""
        return self._collect(self.config.rollout.val_kwargs.n, sampling_of(self.config.rollout, "val"), "val")

    def _collect(self, n: int, sampling: SamplingParams, purpose: str) -> Collect:
        seed = derive_seed(self.config.trainer.seed, purpose)
        return partial(collect, self.runner, n=n, sampling=sampling, seed=seed, slots=self.slots)


def sampling_of(rollout: RolloutConfig, split: str) -> SamplingParams:
    """How rollouts of `split`, train or val, are sampled."""
    if split != "val":
        return SamplingParams(rollout.temperature, rollout.top_p, rollout.top_k, rollout.min_p)
    val = rollout.val_kwargs
    return SamplingParams(val.temperature, val.top_p, val.top_k) if val.do_sample else SamplingParams(0.0)


@asynccontextmanager
async def open_rollout_parts(config: RunConfig, brought: Brought) -> AsyncIterator[RolloutParts]:
    """Build them, what is cheap to refuse first, and close them in the end.

    Raises:
        AgentRLError: data, tools, template, reward or model cannot be used as configured.
    """
    live = config.algorithm.name != "sft"
    train_tasks = _tasks(config.data.train_files, config.data.train_max_samples, config) if live else None
    val_tasks = _tasks(config.data.val_files, config.data.val_max_samples, config)
    reward = brought.reward or (None if config.reward.name == NO_REWARD else load_reward(config.reward))
    interactions_path = config.rollout.multi_turn.interaction_config_path
    interactions = load_interactions(interactions_path) if interactions_path else None
    chat = load_chat(config)
    async with AsyncExitStack() as stack:
        toolbox = load_toolbox(config.rollout.multi_turn, extra_tools=brought.tools)
        stack.push_async_callback(toolbox.close)
        if reward is not None:
            stack.callback(close_reward, reward)
        check = partial(_checked, config, brought, chat, toolbox, interactions)
        train_tasks, val_tasks = (check(tasks) if tasks else None for tasks in (train_tasks, val_tasks))
        engine = await _engine(config, chat)
        stack.push_async_callback(engine.close)
        runner = RolloutRunner(engine, chat, toolbox, reward, config, interactions=interactions)
        slots = asyncio.Semaphore(config.trainer.max_concurrent_rollouts)
        yield RolloutParts(config, chat, toolbox, engine, runner, train_tasks, val_tasks, slots)


def load_chat(config: RunConfig) -> ChatFormat:
    """The chat template of the model's tokenizer."""
    tokenizer = load_tokenizer(config.model)
    if tokenizer is None:
        check_model(config.model)  # half a model says more than the lack of a tokenizer
        raise ConfigError(f"model.path '{config.model.path}' has no tokenizer: set model.tokenizer_path")
    return ChatFormat(tokenizer, template_kwargs=config.data.apply_chat_template_kwargs)


def _tasks(files: Sequence[str], max_samples: int, config: RunConfig) -> TaskTable | None:
    if not files:
        return None
    return load_tasks(files, config.data, max_samples=max_samples)


def _checked(
    config: RunConfig,
    brought: Brought,
    chat: ChatFormat,
    toolbox: Toolbox,
    interactions: Mapping[str, BaseInteraction] | None,
    tasks: TaskTable,
) -> TaskTable:
    """The tasks, each held against what there is, with prompts that fit; says what was done to longer ones."""
    rows = RowCheck(chat, toolbox, config, interactions)

    def length_of(task: Task) -> int:
        if brought.reward is None:
            check_data_source(config.reward, task)
        return rows.prompt_length(task)

    measure = Measure(length_of, partial(token_pieces, chat.tokenizer), chat.template.control_tokens)
    fitting, told = fit_prompts(tasks, measure, config.data)
    rows.finish()
    if told:
        print(told)
    return fitting


def tell_few_rows(num_rows: int, config: RunConfig) -> None:
    """Say that a step repeats rows, where it asks for more than there are."""
    if num_rows < (size := config.data.train_batch_size):
        print(f"there are fewer rows, {num_rows}, than data.train_batch_size={size}: a step draws some more than once")


async def _engine(config: RunConfig, chat: ChatFormat) -> Engine:
    if config.rollout.engine == "scripted":
        reply = load_object(str(config.rollout.script_path))
        return ScriptedEngine(reply, tokenizer=chat.tokenizer, of_text=True, stop_token_id=chat.stop_token_ids[0])
    longest = config.data.max_prompt_length + config.data.max_response_length
    if config.rollout.engine == "sglang":
        return await load_sglang_engine(config.model, config.rollout, longest, config.trainer.run_dir)
    return load_torch_engine(config.model, config.rollout, longest)
