"""The tools of a run. Each rollout opens a session, which converts tool failures to outcomes of calls."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterable
from copy import copy
from itertools import chain
from types import TracebackType
from typing import Self
from uuid import uuid4

from pydantic import JsonValue

from agentrl.chat.base import ParsedCall
from agentrl.concurrency import GRACE_S, Offload, OverdueError, Running, UnavailableError
from agentrl.config.rollout import MultiTurnConfig
from agentrl.errors import AgentRLError, ConfigError, DataError, suggestion
from agentrl.tools.agent_tool import BoundAgentTool, RunAgent, answer_of
from agentrl.tools.arguments import ArgumentsError
from agentrl.tools.base import InfraError, ToolError
from agentrl.tools.binding import AgentData, BoundTool, Shared, Starting, ToolInstance
from agentrl.tools.binding_any import AnyTool, bind, opened_always, selected_of, states_of
from agentrl.tools.class_tool import RELEASE_TIMEOUT_S
from agentrl.tools.failures import UNTYPED, as_error, describe
from agentrl.tools.loading import load_tools
from agentrl.tools.process import ToolFailedError
from agentrl.tools.result import Answer, ToolResult, bounded
from agentrl.tools.task_folders import check_task_folder
from agentrl.types.messages import ToolSchema
from agentrl.types.rollout import Outcome
from agentrl.types.task import Task

_LOGGER = logging.getLogger(__name__)
_MIN_TEXT_CHARS = 10_000
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.1, 5.0
"""First and maximum pause before a call that raised `InfraError` is repeated, for tools with `retries`."""


class Toolbox:
    """All tools of a run.

    Raises:
        ConfigError: two tools have the same name, or a schema is invalid.
    """

    def __init__(self, tools: Iterable[AnyTool] = (), multi_turn: MultiTurnConfig | None = None) -> None:
        given, limits = [*tools], multi_turn or MultiTurnConfig()
        self.max_text_chars = max(limits.max_tool_response_length, _MIN_TEXT_CHARS)
        self._offload = Offload()
        self._logged: set[tuple[str, type]] = set()
        self.tools: dict[str, BoundTool] = {}
        for bound in chain.from_iterable(bind(tool, limits.tool_timeout_s, self._offload) for tool in given):
            if bound.name in self.tools:
                raise ConfigError.keyless(f"two tools have the name '{bound.name}'")
            self.tools[bound.name] = bound
        self.opened_always = opened_always(given)
        # names must differ, because the rewards of a rollout are stored under the names of tools and environments
        for state in states_of(self.tools, self.opened_always):
            if state.name in self.tools:
                raise ConfigError.keyless(f"an environment and a tool have the name '{state.name}'")
        shared = [*(tool.shared for tool in self.tools.values()), *self.opened_always]
        self._shared: set[Shared] = {each for each in shared if isinstance(each, Shared)}

    async def start(self) -> None:
        """Check shared resources before the first rollout. Without `start`, a resource is checked at its first use.

        Raises:
            ConfigError: a resource cannot be used, such as sandboxes that are not isolated on this machine.
        """
        for shared in self._shared:
            if isinstance(shared, Starting):
                await shared.begin()

    @property
    def schemas(self) -> list[ToolSchema]:
        """Schemas of all tools; a row without a selection of tools offers all of them to the model."""
        return [tool.schema for tool in self.tools.values()]

    def session(self, task: Task) -> ToolSession:
        """Open the tools of one rollout, for use with `async with`.

        Raises:
            DataError: the row selects an unknown tool.
        """
        try:
            return self._open(task)
        except DataError as error:
            raise DataError(f"row {task.index}: {error}") from error

    def _open(self, task: Task) -> ToolSession:
        return ToolSession(self, task)

    def check(self, task: Task) -> None:
        """Reject a row that names an unknown tool, or has arguments that the tool does not accept.

        Raises:
            DataError: the row is invalid; the message names the field and the nearest name.
        """
        selected = selected_of(self.tools, task.tool_options)
        for name, tool in selected.items():
            tool.check_row(task.tools_kwargs.get(name, {}))
        check_task_folder(task, states_of(selected))
        for state in states_of(selected, self.opened_always):
            state.check_row(task)
        known = {*self.tools, *(state.name for state in states_of(self.tools, self.opened_always))}
        for name in task.tools_kwargs if self.tools else ():
            if name not in known:
                raise DataError(f"field 'tools_kwargs': unknown tool '{name}': {suggestion(name, known)}")

    def metrics(self) -> dict[str, float]:
        """Return `abandoned_calls` (calls that still hang) and `replaced_loops` (event loops replaced since the start).

        Metrics of shared resources, such as `SandboxPool.metrics`, are summed and included.
        """
        abandoned = sum(tool.breaker.num_abandoned for tool in self.tools.values())
        found: dict[str, float] = {"abandoned_calls": abandoned, "replaced_loops": self._offload.num_replaced_loops}
        for shared in self._shared:
            for name, value in shared.metrics().items():
                found[name] = found.get(name, 0.0) + value
        return found

    def log_once(self, doing: str, error: BaseException, hint: str = "") -> None:
        """Log a tool's failure the first time; repeats of the same kind are not logged."""
        if (doing, type(error)) not in self._logged:
            self._logged.add((doing, type(error)))
            _LOGGER.warning("%s failed (reported once): %s%s", doing, describe(error), hint, exc_info=error)

    async def close(self) -> None:
        """Stop the threads and processes of the tools. Sessions must have ended."""
        for tool in self.tools.values():
            tool.close()
        self._offload.close()
        for shared in self._shared:
            await shared.close()


class ToolSession:
    """The tools of one rollout.

    Attributes:
        schemas: schemas that the model sees: of all tools, or of the tools that the row's `tool_options` select. Tools
            that start agents are included only in a `view` with `run_agent`.
        rewards: name of a tool or environment -> its reward for the rollout; complete after `finish`.
        data: passed to tools as `agent_data`; an agent loop may set `data.messages` to its own list.
    """

    def __init__(self, toolbox: Toolbox, task: Task) -> None:
        self._toolbox = toolbox
        selected = selected_of(toolbox.tools, task.tool_options)
        self._agents = {name: tool for name, tool in selected.items() if isinstance(tool, BoundAgentTool)}
        self._tools = {name: tool for name, tool in selected.items() if name not in self._agents}
        self._run_agent: RunAgent | None = None
        self._instances: dict[str, ToolInstance] = {}
        self.data = AgentData(task, list(task.messages), uuid4().hex)
        opened = ((state, state.open(self.data)) for state in states_of(self._tools, toolbox.opened_always))
        self.data.states.update({state: each for state, each in opened if each is not None})
        self._finished = False
        self._opened = time.perf_counter()
        self.rewards: dict[str, float] = {}

    @property
    def schemas(self) -> list[ToolSchema]:
        """Schemas that the model sees."""
        return [tool.schema for tool in self._tools.values()]

    @property
    def has_agent_tool(self) -> bool:
        """Whether the run has a tool that starts agents, even if the row does not select it."""
        return any(isinstance(tool, BoundAgentTool) for tool in self._toolbox.tools.values())

    def view(self, names: Collection[str] | None = None, run_agent: RunAgent | None = None) -> ToolSession:
        """Return a session for one of several conversations. Both sessions share all state.

        Args:
            names: the tools that the conversation may call; None: all tools.
            run_agent: runs the agents that the conversation starts; None: the conversation cannot start agents.
        """
        other = copy(self)
        tools = {**self._tools, **self._agents} if run_agent else self._tools
        other._tools = {name: tool for name, tool in tools.items() if names is None or name in names}
        other._run_agent = run_agent
        return other

    @property
    def ended(self) -> bool:
        """Whether an environment has ended the episode."""
        return any(state.ended for state in self.data.states.values())

    async def start(self) -> str:
        """Start the environment; return the text that it adds to the prompt. Call this before the first model turn.

        Raises:
            DataError: the environment cannot be started for this row.
            InfraError: the environment cannot be started for reasons outside the row and the policy.
        """
        return "".join([await state.start() or "" for state in self.data.states.values()])

    async def call(self, call: ParsedCall) -> ToolResult:
        """Run a call; return its result. A wrong call or a failing tool sets the outcome; an AgentRLError is raised."""
        start = time.perf_counter()
        if self._run_agent and call.error is None and call.name in self._agents:
            answer, outcome = await answer_of(self._agents[call.name], call.arguments, self._run_agent)
        else:
            answer, outcome = await self._outcome(call)
        text, duration_s = bounded(answer.text, self._toolbox.max_text_chars), time.perf_counter() - start
        return ToolResult(
            text,
            outcome,
            answer.reward,
            duration_s,
            answer.metrics,
            answer.images,
            start - self._opened,
            answer.optional_images,
        )

    async def _outcome(self, call: ParsedCall) -> tuple[Answer, Outcome]:
        if call.error is not None:
            return Answer(f"Error: {call.error}"), Outcome.FORMAT_ERROR
        if (tool := self._tools.get(call.name)) is None:
            hint = suggestion(call.name, self._tools)
            return Answer(f"Error: there is no tool '{call.name[:100]}': {hint}"), Outcome.FORMAT_ERROR
        try:
            return await self._run(tool, tool.reader.read(call.arguments))
        except ArgumentsError as error:
            return Answer(f"Error: {error}"), Outcome.FORMAT_ERROR
        except OverdueError:
            return Answer(f"Error: no answer within {tool.deadline_s:g} seconds"), Outcome.TIMEOUT
        except (InfraError, UnavailableError) as error:
            self._toolbox.log_once(f"calling {tool.name}", error)
            return Answer(f"Error: {describe(error)}"), Outcome.INFRA_ERROR
        except (ToolError, ToolFailedError) as error:
            return Answer(as_error(str(error))), Outcome.TOOL_ERROR
        except AgentRLError:  # a mistake in the data or code, such as a row without a required argument
            raise
        except Exception as error:  # a user's code may raise anything
            self._toolbox.log_once(f"calling {tool.name}", error, UNTYPED)
            return Answer(f"Error: {describe(error)}"), Outcome.TOOL_ERROR

    async def _run(self, tool: BoundTool, arguments: dict[str, JsonValue]) -> tuple[Answer, Outcome]:
        for number in range(tool.retries):
            try:
                return await self._answered(tool, arguments)
            except InfraError:
                await asyncio.sleep(min(_FIRST_PAUSE_S * 2**number, _MAX_PAUSE_S))
        return await self._answered(tool, arguments)

    async def _answered(self, tool: BoundTool, arguments: dict[str, JsonValue]) -> tuple[Answer, Outcome]:
        if tool.name not in self._instances:
            self._instances[tool.name] = tool.instance(self.data)
        answer = await self._instances[tool.name].call(arguments)
        return answer, answer.outcome

    async def finish(self) -> None:
        """Collect the rewards for the rollout from environments and called tools. A second call does nothing.

        Raises:
            InfraError, RewardError: the reward of an environment is unknown; see `RolloutState.reward`.
        """
        if not self._finished:
            self._finished = True
            for state in self.data.states.values():
                if (reward := await state.reward()) is not None:
                    self.rewards[state.name] = reward
            rewards = [self._reward(name, held) for name, held in self._instances.items()]
            await (rewards[0] if len(rewards) == 1 else asyncio.gather(*rewards))  # one reward needs no asyncio task

    async def _reward(self, name: str, instance: ToolInstance) -> None:
        try:
            reward = await instance.reward()
        except Exception as error:  # only the reward is lost: the rollout continues
            self._toolbox.log_once(f"the reward of {name}", error)
        else:
            if reward is not None:
                self.rewards[name] = reward

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Collect the rewards if the rollout did not fail, then release everything."""
        try:
            if kind is None:
                await self.finish()
        finally:
            await self._release()

    async def _release(self) -> None:
        # start all releases before awaiting the first, so that a second cancellation skips none
        states = ((state.name, state) for state in self.data.states.values())
        held = chain(self._instances.items(), states)
        running = [(name, self._begin_release(name, each)) for name, each in held]
        await asyncio.gather(*(self._released(name, release) for name, release in running if release is not None))

    def _begin_release(self, name: str, instance: ToolInstance) -> Running[None] | None:
        try:
            return instance.begin_release()
        except UnavailableError as error:
            self._toolbox.log_once(f"releasing {name}", error)
            return None

    async def _released(self, name: str, release: Running[None]) -> None:
        try:
            await release.result(RELEASE_TIMEOUT_S + GRACE_S, detached=True)
        except Exception as error:  # a failed release has one effect: resources stay open
            self._toolbox.log_once(f"releasing {name}", error)


def load_toolbox(multi_turn: MultiTurnConfig, *, extra_tools: Iterable[AnyTool] = ()) -> Toolbox:
    """Load the tools of `rollout.multi_turn`, including the environment's tools, and add `extra_tools`.

    Raises:
        ConfigError: a file, entry or schema is invalid; the message names file and entry.
    """
    return Toolbox([*load_tools(multi_turn), *extra_tools], multi_turn)
