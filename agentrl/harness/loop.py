"""The agent loop `harness`: each rollout runs a program that reaches the model through the gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from agentrl.agent_loops.base import AgentLoop, Conversation
from agentrl.agent_loops.generate import Generate
from agentrl.chat.base import ToolParser
from agentrl.config.run import RunConfig
from agentrl.engines.base import SamplingParams
from agentrl.errors import ConfigError
from agentrl.gateway.session import Session
from agentrl.harness.commands import KILLED, TaskCommands
from agentrl.harness.endpoint import Endpoint, without
from agentrl.harness.function import run_function
from agentrl.harness.in_task import local_settings
from agentrl.harness.instruction import instruction_of
from agentrl.harness.outcome import Finished, joined, problem_of, rollout_of, stopped
from agentrl.harness.process import Ended
from agentrl.harness.run import HarnessRun
from agentrl.harness.slots import WatchedSession
from agentrl.sandboxes.base import SandboxEndedError, SandboxUnavailableError
from agentrl.tools.base import InfraError
from agentrl.tools.task_folders import task_folder_state
from agentrl.types.messages import Message
from agentrl.types.rollout import Rollout
from agentrl.types.task import Task

if TYPE_CHECKING:
    from agentrl.chat.format import ChatFormat
    from agentrl.gateway.server import Address
    from agentrl.interactions.session import InteractionSession
    from agentrl.tools.toolbox import ToolSession

T = TypeVar("T")

_HOLD_S = 10.0
"""After the rollout has ended, requests wait until the harness is stopped, but at most for this number of seconds."""
_ABORT_S = 0.5
"""Seconds to wait after the deadline for the engine to return the turn that the deadline cut off."""


@dataclass(frozen=True, slots=True)
class _Use:
    """Objects that a rollout uses in every run of its harness. A harness runs once for each step of a task folder.

    Attributes:
        end: deadline on the monotonic clock; None: no deadline.
    """

    session: Session
    watched: WatchedSession
    address: Address
    end: float | None
    commands: TaskCommands


class HarnessLoop(AgentLoop):
    """Runs the harness of `rollout.harness`, and returns the rollout that the gateway session recorded.

    Args:
        shared: objects that all rollouts of the run share.
    """

    roles = ("tool",)
    uses_tools = False
    uses_task_sandbox = True
    follows_steps = True
    strips_thinking = False

    def __init__(self, chat: ChatFormat, parser: ToolParser, config: RunConfig, shared: HarnessRun) -> None:
        super().__init__(chat, parser, config)
        self._shared = shared

    @classmethod
    def open_shared(cls, config: RunConfig) -> HarnessRun:
        """Read the settings; nothing is started.

        Raises:
            ConfigError, UnknownNameError: the settings are wrong.
        """
        return HarnessRun.of(config)

    def prompt(self, task: Task, tools: ToolSession | None) -> Conversation:
        """See `AgentLoop.prompt`. The messages that the harness adds are not known before it runs.

        Raises:
            DataError: this prompt cannot be passed to a harness.
        """
        self._shared.check(task)
        if tools is not None and self._shared.settings.in_task and (folder := task_folder_state(tools.data)):
            local_settings(folder)
        return super().prompt(task, tools)

    async def run(
        self,
        task: Task,
        generate: Generate,
        tools: ToolSession | None,
        interaction: InteractionSession | None,
        sampling: SamplingParams,
    ) -> Rollout:
        """See `AgentLoop.run`."""
        if self.resume_point is not None:
            raise ConfigError.keyless("a harness cannot start in the middle of a saved rollout")
        limit_s = self.config.rollout.multi_turn.rollout_timeout_s
        deadline = None if limit_s is None else time.monotonic() + limit_s
        session = Session(
            *(self.chat, self.parser, self.config, generate, sampling, task), call_format=self.call_format
        )
        session.hold_s = _HOLD_S
        watched, commands = WatchedSession(session), await self._commands(task, tools)
        try:
            finished = await self._finished(task, session, watched, deadline, commands)
        except asyncio.CancelledError:
            if deadline is None or time.monotonic() < deadline:
                raise
            finished = stopped()  # the rollout's deadline ended the harness: the turns so far are kept
        finally:
            await commands.close()
            await session.close()
        if commands.failure is not None:
            raise commands.failure
        return rollout_of(self._shared, session, watched, finished)

    async def _commands(self, task: Task, tools: ToolSession | None) -> TaskCommands:
        """Reserve the sandbox of a task folder; the sandbox starts at the first command."""
        folder = None if tools is None else task_folder_state(tools.data)
        if folder is not None:
            self._shared.start_folder(folder)
        return TaskCommands(task, folder, self.config.rollout.multi_turn.tool_timeout_s)

    async def _finished(
        self,
        task: Task,
        session: Session,
        watched: WatchedSession,
        deadline: float | None,
        commands: TaskCommands,
    ) -> Finished:
        """Run the harness, once for each step of the task, until its last run ends or must be stopped."""
        shared = self._shared
        began = time.monotonic()
        async with shared.slots.taken(watched), shared.address(watched) as address:
            start = time.monotonic()
            own_s = shared.settings.deadline_s
            limits = [deadline, None if own_s is None else start + own_s]
            end = min((each for each in limits if each is not None), default=None)
            use = _Use(session, watched, address, end, commands)
            finished = await self._once(task, use)
            while (text := await self._next_step(finished, use)) is not None:
                task = replace(task, messages=[*task.messages[:-1], Message(role="user", content=text)])
                finished = joined(finished, await self._once(task, use))
        finished.duration_s, finished.wait_s = time.monotonic() - start, start - began
        return finished

    async def _once(self, task: Task, use: _Use) -> Finished:
        """Run the harness on one instruction."""
        before = use.session.num_turns
        run = self._command if self._shared.function is None else self._called
        finished = await run(task, use)
        finished.problem = problem_of(use.session, use.watched, finished, use.session.num_turns - before)
        return finished

    async def _command(self, task: Task, use: _Use) -> Finished:
        try:
            async with AsyncExitStack() as stack:
                starting = asyncio.timeout(_left(use.end))
                try:
                    async with starting:
                        folder = use.commands.folder
                        started = self._shared.started(instruction_of(task), task, use.address, folder)
                        process = await stack.enter_async_context(started)
                except TimeoutError:
                    if not starting.expired():
                        raise
                    return stopped()
                result = await _until(process.wait(), use)
                ended = result or await process.end()
        except SandboxEndedError as error:  # a program ended its sandbox: counts as an action of the policy
            result = ended = Ended(KILLED, f"{error}; its files are lost")
        except SandboxUnavailableError as error:
            raise InfraError(str(error)) from error
        return _finished(ended, None, use, by_itself=result is not None)

    async def _called(self, task: Task, use: _Use) -> Finished:
        assert self._shared.function is not None
        own = use.address.openai_base_url, use.address.base_url, use.address.key, self._shared.settings.model
        calling = run_function(self._shared.function, task, Endpoint(*own, use.commands))
        result = await _until(calling, use, use.commands.failed)
        ended, score = result or (Ended(None, ""), None)
        return _finished(ended, score, use, by_itself=result is not None)

    async def _next_step(self, finished: Finished, use: _Use) -> str | None:
        """Return the instruction of the next step of a task folder, if the harness may continue.

        If the deadline passes before the next step is ready, the harness counts as stopped.
        """
        dropped = finished.problem and (self._shared.settings.on_exit == "fail" or not use.session.num_turns)
        ended = use.commands.failure or not finished.by_itself or finished.limited or finished.ended.failed
        if use.commands.folder is None or ended or dropped:
            return None
        try:
            async with asyncio.timeout(_left(use.end)):
                return await use.commands.folder.next_step()
        except TimeoutError:
            finished.by_itself = False
            return None


def _left(end: float | None) -> float | None:
    return None if end is None else max(0.0, end - time.monotonic())


def _finished(ended: Ended, score: float | None, use: _Use, *, by_itself: bool) -> Finished:
    limited = use.session.ended.is_set()
    code = None if limited else ended.exit_code  # after a limit, the exit code would depend on timing
    ended = replace(ended, exit_code=code, output=without(use.address.key, ended.output))
    return Finished(ended, by_itself=by_itself, limited=limited, score=score)


async def _until(work: Coroutine[None, None, T], use: _Use, failed: asyncio.Event | None = None) -> T | None:
    """Return the result of `work`; None if the session ended, the sandbox failed or the deadline passed first."""
    events = [use.session.ended, *([failed] if failed else ())]
    running, limit, *others = asyncio.ensure_future(work), *(asyncio.ensure_future(each.wait()) for each in events)
    tasks = running, limit, *others
    try:
        await asyncio.wait(tasks, timeout=_left(use.end), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return running.result()
        if use.watched.num_running and not limit.done():
            await asyncio.wait({limit}, timeout=_ABORT_S)
        return None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
