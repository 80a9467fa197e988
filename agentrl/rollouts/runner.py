"""Runs one rollout from start to reward: agent loop, tools, deadline, checks and score."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, cast

from agentrl.agent_loops.base import AgentLoop
from agentrl.agent_loops.loading import LoopFactory
from agentrl.agent_loops.resume import ResumePoint
from agentrl.config.reward_sources import GuardsConfig
from agentrl.config.run import RunConfig
from agentrl.engines.base import Engine, SamplingParams
from agentrl.errors import AgentRLError, DataError
from agentrl.interactions.base import BaseInteraction
from agentrl.interactions.replayed import RecordedAnswers, RecordedSession
from agentrl.interactions.session import InteractionSession
from agentrl.rewards.base import Reward, check_bounds
from agentrl.rewards.guards import Guards
from agentrl.rewards.reward_view import ENVIRONMENT, solution_view
from agentrl.rollouts.generate_session import RolloutGenerate, completed
from agentrl.rollouts.user_sampling import UserSampling
from agentrl.rollouts.validation import checked, failed_rollout, innermost, salvaged
from agentrl.tools.base import InfraError
from agentrl.tools.toolbox import Toolbox, ToolSession
from agentrl.types.messages import Message
from agentrl.types.rollout import INTERACTION, Rollout, Stop
from agentrl.types.task import Task, with_observation
from agentrl.types.trajectory import Trajectory
from agentrl.utils.seeds import derive_seed

if TYPE_CHECKING:
    from agentrl.chat.format import ChatFormat

_LOGGER = logging.getLogger(__name__)

GRACE_S = 1.0
"""Seconds between a rollout's deadline and its cancellation. Meanwhile the engine returns the sampled tokens."""


class RolloutRunner:
    """Runs rollouts; `run` may be called any number of times concurrently on one event loop.

    Errors: an exception of a loop ends its rollout with `stop=error` and without a score; the rollout keeps its
    conversations. An `InfraError` also marks the rollout as `infra_failed`. An `AgentRLError` (a wrong configuration, a
    failing reward function) propagates and ends the run.

    Args:
        reward: scores the rollouts; None: rollouts get no score.
        interactions: name -> simulated user, for rows that name one.

    Attributes:
        on_end: progress callback, called when a rollout ends, with or without an error.
    """

    def __init__(
        self,
        engine: Engine,
        chat: ChatFormat,
        toolbox: Toolbox,
        reward: Reward | None,
        config: RunConfig,
        *,
        interactions: Mapping[str, BaseInteraction] | None = None,
    ) -> None:
        self._engine = engine
        self._chat = chat
        self._toolbox = toolbox
        self._reward = reward
        self._config = config
        self._interactions = interactions or {}
        self._guards = Guards(config.reward.guards)
        self._loops = LoopFactory(chat, config)
        self._logged: set[str] = set()
        self.on_end: Callable[[Rollout], object] | None = None

    async def run(
        self,
        task: Task,
        sampling: SamplingParams,
        *,
        seed: int,
        priority: int = 0,
        resume_point: ResumePoint | None = None,
        toolbox: Toolbox | None = None,
        answers: RecordedAnswers | None = None,
    ) -> Rollout:
        """Run one rollout of `task`; turn t of trajectory k samples with derive_seed(seed, k, t).

        For a sub-agent's trajectory, k is derived from the sub-agent's place in the rollout; see `agent_loops.places`.

        Args:
            priority: rollouts with higher priority are sampled first.
            resume_point: saved state to continue from. The first new turn of a trajectory has t = 0.
            toolbox: used in place of the run's toolbox.
            answers: recorded answers of the simulated user, used as long as the conversation equals the recorded one.
        """
        start = time.perf_counter()
        loop = self._loops.build(task.agent_name, task.tool_options.tool_format, task.template_variables)
        loop.resume_point = resume_point
        sampling = completed(sampling, self._chat, self._config.data.max_response_length)
        generate = RolloutGenerate(self._engine, seed=seed, deadline=self._deadline(), priority=priority)
        try:
            tools = (toolbox or self._toolbox).session(task)
            tools.data.seed = derive_seed(seed, "tools")
            user = partial(self._user, seed=seed, priority=priority, answers=answers) if "user" in loop.roles else None
            rollout, tool_rewards = await self._attempt(task, loop, generate, tools, user, sampling)
            environment = tools.data.environment
        except Exception as error:
            rollout, tool_rewards, environment = self._failed(loop, error), {}, None
        rollout = checked(rollout, loop, generate.recording, self._config.data.max_response_length)
        rollout.seed, rollout.tool_rewards = seed, tool_rewards
        if rollout.stop is Stop.ABORTED and generate.cut_by_deadline:
            rollout.stop = Stop.DEADLINE
        await self._score(task, rollout, environment)
        rollout.duration_s = time.perf_counter() - start
        if self.on_end:
            self.on_end(rollout)
        return rollout

    async def close(self) -> None:
        """Close the resources that the rollouts share. All rollouts must have ended."""
        await self._loops.close()

    @property
    def nondeterministic_users(self) -> list[str]:
        """Names of the simulated users that are not marked as deterministic."""
        return [name for name, user in self._interactions.items() if not getattr(user, "deterministic", True)]

    @property
    def guards(self) -> GuardsConfig:
        """Configuration of the guards."""
        return self._config.reward.guards

    def _deadline(self) -> float | None:
        timeout_s = self._config.rollout.multi_turn.rollout_timeout_s
        return None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s

    def _user(self, task: Task, seed: int, priority: int, answers: RecordedAnswers | None) -> InteractionSession | None:
        if not self._interactions:
            return None
        users, sample = self._interactions, UserSampling(self._engine, self._chat, priority)
        own_seed = derive_seed(seed, "user")
        if answers is not None:
            return RecordedSession(users, task, answers, seed=own_seed, sample=sample)
        return InteractionSession(users, task, seed=own_seed, sample=sample)

    async def _attempt(
        self,
        task: Task,
        loop: AgentLoop,
        generate: RolloutGenerate,
        session: ToolSession,
        open_user: Callable[[Task], InteractionSession | None] | None,
        sampling: SamplingParams,
    ) -> tuple[Rollout, dict[str, float]]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(generate.release)
            tools = await stack.enter_async_context(session)
            if loop.uses_tools:
                task = self._with_observation(task, tools, await tools.start())
            user = open_user(task) if open_user else None
            interaction = await stack.enter_async_context(user) if user is not None else None
            rollout = await _until_deadline(loop, loop.run(task, generate, tools, interaction, sampling), generate)
            if messages := _last_messages(rollout):
                tools.data.messages = messages  # rewards of tools may read these messages
            await tools.finish()
            overall = {} if interaction is None else {INTERACTION: await interaction.score()}
        return rollout, {**tools.rewards, **overall}

    def _with_observation(self, task: Task, tools: ToolSession, observation: str) -> Task:
        """Append the text returned by the environment's `reset` to the prompt.

        Raises:
            DataError: the prompt becomes longer than `data.max_prompt_length`.
        """
        if not observation:
            return task
        task = with_observation(task, observation)
        loop = self._loops.build(task.agent_name, task.tool_options.tool_format, task.template_variables)
        length, limit = len(loop.prompt(task, tools).trajectory.token_ids), self._config.data.max_prompt_length
        if length > limit:
            raise DataError(
                f"row {task.index}: with the text that reset of the environment returned, the prompt has {length}"
                f" tokens: set data.max_prompt_length={length} or more, not {limit}"
            )
        return task

    def _failed(self, loop: AgentLoop, error: Exception) -> Rollout:
        error = innermost(error)
        if isinstance(error, AgentRLError):
            raise error
        rollout = failed_rollout(loop, error)
        if rollout.error not in self._logged:
            self._logged.add(str(rollout.error))
            # the message of an InfraError needs no traceback
            exc_info = None if isinstance(error, InfraError) else error
            _LOGGER.warning("a rollout failed (reported once): %s", rollout.error, exc_info=exc_info)
        return rollout

    async def _score(self, task: Task, rollout: Rollout, environment: object | None) -> None:
        if self._reward is None or rollout.stop is Stop.ERROR:
            return
        # the range is checked only for a score that the loop set: the reward checks the range of its own scores
        bounds = self._config.reward.range if "score" in rollout.rewards else None
        if "score" not in rollout.rewards:  # a loop may set the score itself
            solution, extra = solution_view(rollout, self._chat.text, self._config.reward.include_tool_text)
            rollout.scored_text_sha256 = sha256(solution.encode("utf-8", "surrogatepass")).hexdigest()
            extra_info = {"index": task.index, "prompt": list(task.messages), **task.extra_info, **extra}
            if environment is not None:
                extra_info[ENVIRONMENT] = environment
            try:
                scored = await self._reward(task.data_source, solution, task.ground_truth, extra_info)
            except InfraError as error:
                rollout.infra_failed, rollout.error = True, f"reward: {error}"
                return
            rollout.rewards = {**self._guards(scored, cast("list[str]", extra["turn_texts"])), **rollout.rewards}
        check_bounds(rollout.reward, bounds, f"row {task.index} of '{task.data_source}'")


def _last_messages(rollout: object) -> list[Message]:
    """Return the messages of the last trajectory. `rollout` is not checked yet, so it may be any object."""
    found = rollout.trajectories if isinstance(rollout, Rollout) else []
    return found[-1].messages if found and isinstance(found[-1], Trajectory) else []


async def _until_deadline(
    loop: AgentLoop, running: Coroutine[None, None, Rollout], generate: RolloutGenerate
) -> Rollout:
    """Return the rollout of `running`; after the deadline, a rollout with the content of the loop's conversations."""
    timeout = asyncio.timeout_at(None if generate.deadline is None else generate.deadline + GRACE_S)
    try:
        async with timeout:
            rollout = await running
        if (task := asyncio.current_task()) and task.cancelling():  # the loop ignored a cancellation from outside
            raise asyncio.CancelledError
        return rollout
    except TimeoutError:
        if not timeout.expired():  # the loop itself raised the error
            raise
        return salvaged(loop, Stop.DEADLINE)
    except asyncio.CancelledError:
        if (task := asyncio.current_task()) and task.cancelling():
            raise
        raise RuntimeError("the loop cancelled itself") from None  # a CancelledError would end this task silently
