"""Tools that answer with a rollout's recorded results instead of running."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from typing import Literal, Self, TypeAlias

from pydantic import JsonValue

from agentrl.chat.base import ParsedCall
from agentrl.config.rollout import MultiTurnConfig
from agentrl.errors import ConfigError, DataError
from agentrl.tools.agent_tool import BoundAgentTool
from agentrl.tools.arguments import shorten
from agentrl.tools.binding import BoundTool
from agentrl.tools.result import Answer
from agentrl.tools.toolbox import Toolbox, ToolSession
from agentrl.types.messages import ToolSchema
from agentrl.types.rollout import Outcome, ToolCall
from agentrl.types.task import Task

Unrecorded: TypeAlias = Literal["error", "stub", "live"]

_NOT_RUN = (Outcome.LIMIT_ERROR, Outcome.ABORTED)


class Recording:
    """Recorded calls of one rollout. Each answer is used once; equal calls get their answers in recorded order.

    Two calls are equal if their names are equal, and their arguments are equal as JSON (ignoring blanks and key order).
    Recorded calls that never ran are not used. A recorded answer is only text, without images.

    Args:
        uid: uid of the rollout's task.
        rewards: the tools' rewards for the rollout.
        observation: recorded text that the environment added to the prompt.
        ended: whether the environment ended the episode after the last recorded call.

    Attributes:
        num_answered: number of calls answered so far.
        unrecorded: valid calls without a recorded answer, as text.
    """

    def __init__(
        self,
        uid: str,
        calls: Sequence[ToolCall],
        rewards: Mapping[str, float],
        *,
        observation: str = "",
        ended: bool = False,
    ) -> None:
        self.uid = uid
        self.rewards = dict(rewards)
        self.observation = observation
        self._ended = ended
        self.num_answered = 0
        self.unrecorded: list[str] = []
        self._waiting: dict[tuple[str, str], deque[ToolCall]] = defaultdict(deque)
        for call in calls:
            if call.outcome not in _NOT_RUN:
                self._waiting[call.name, _normalised(call.arguments)].append(call)

    @property
    def ended(self) -> bool:
        """Whether all recorded calls were answered, and the environment ended the episode after the last call."""
        return self._ended and not any(self._waiting.values())

    def without(self, names: Collection[str]) -> None:
        """Drop the recorded calls of the tools `names`. These tools start agents, which run again in a replay."""
        for key in [key for key in self._waiting if key[0] in names]:
            del self._waiting[key]

    def take(self, call: ParsedCall) -> ToolCall | None:
        """Return the recorded call that is equal to `call`; None if none is left.

        A malformed call matches only a recorded format error.
        """
        waiting = self._waiting.get((call.name, _normalised(call.arguments)))
        if not waiting or (call.error is not None and waiting[0].outcome is not Outcome.FORMAT_ERROR):
            return None
        self.num_answered += 1
        return waiting.popleft()


class RecordedToolbox(Toolbox):
    """Tools of a saved run, with the recorded schemas; `playing` returns a copy that answers from a recording.

    Opening a session for a task other than the recorded one raises DataError. If a tool in `live` starts agents, calls
    of this tool are not answered from the recording: the agents run again, and the agents' own tool calls are answered
    from the recording.

    The arguments of an unrecorded call are first checked as in a live call; an invalid call is a `format_error`.
    `unrecorded` decides what happens to a valid call:

    - `error`: the call ends the rollout with an `infra_error` that names the call, because the recording is incomplete
    - `stub`: the answer says that the call was not recorded; the outcome is `tool_error`, and the rollout continues
    - `live`: the call runs in the toolbox `live`. Calls with a recorded answer do not run there, so their effects, such
      as written files, are missing there

    Args:
        schemas: tool schemas of the saved run.

    Raises:
        ConfigError: `unrecorded` is `live`, and `live` is None or lacks a recorded tool.
    """

    def __init__(
        self,
        schemas: Sequence[ToolSchema],
        multi_turn: MultiTurnConfig,
        unrecorded: Unrecorded = "error",
        live: Toolbox | None = None,
    ) -> None:
        super().__init__((), multi_turn)
        self.unrecorded = unrecorded
        self.live = live if unrecorded == "live" else None
        self.recording = Recording("", (), {})
        for schema in schemas:
            if live is not None and isinstance(starts_agents := live.tools.get(schema.name), BoundAgentTool):
                self.tools[schema.name] = starts_agents
                continue
            if unrecorded == "live" and (live is None or schema.name not in live.tools):
                raise ConfigError.keyless(f"the recorded tool '{schema.name}' is not one of the live tools")
            deadline_s = live.tools[schema.name].deadline_s if self.live and live else multi_turn.tool_timeout_s
            self.tools[schema.name] = BoundTool(schema, deadline_s, self._offload)

    def playing(self, recording: Recording) -> Self:
        """Return a copy of this toolbox whose tools answer from `recording`."""
        other = copy(self)
        other.recording = recording
        recording.without([name for name, tool in self.tools.items() if isinstance(tool, BoundAgentTool)])
        return other

    def _open(self, task: Task) -> ToolSession:
        if task.uid != self.recording.uid:
            raise DataError(f"the recorded calls belong to task '{self.recording.uid}', not to '{task.uid}'")
        return _RecordedSession(self, task)


class _RecordedSession(ToolSession):
    def __init__(self, toolbox: RecordedToolbox, task: Task) -> None:
        super().__init__(toolbox, task)
        self._recording = toolbox.recording
        self._unrecorded = toolbox.unrecorded
        self._live = toolbox.live.session(task) if toolbox.live else None
        if self._live:
            self.data = self._live.data

    async def _outcome(self, call: ParsedCall) -> tuple[Answer, Outcome]:
        if (recorded := self._recording.take(call)) is not None:
            return Answer(recorded.result, recorded.reward), recorded.outcome
        return await super()._outcome(call)

    async def _run(self, tool: BoundTool, arguments: dict[str, JsonValue]) -> tuple[Answer, Outcome]:
        called = f"{tool.name}({shorten(json.dumps(arguments, ensure_ascii=False))})"
        self._recording.unrecorded.append(called)
        if self._live:
            return await self._live._run(self._live._tools[tool.name], arguments)
        if self._unrecorded == "stub":
            return Answer(f"Error: {called} was not recorded, so its answer is not known."), Outcome.TOOL_ERROR
        return Answer(f"not recorded: {called}"), Outcome.INFRA_ERROR

    @property
    def ended(self) -> bool:
        """Whether the recorded or the live environment has ended the episode."""
        return self._recording.ended or (self._live is not None and self._live.ended)

    async def start(self) -> str:
        """Start the live environment, if there is one; return the recorded observation."""
        if self._live:
            await self._live.start()
        return self._recording.observation

    async def finish(self) -> None:
        """Collect the rewards for the rollout: recorded rewards, and live rewards where no reward is recorded."""
        if self._live:
            await self._live.finish()
        self.rewards = {**(self._live.rewards if self._live else {}), **self._recording.rewards}

    async def _release(self) -> None:
        if self._live:
            await self._live._release()


def _normalised(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments.strip() or "{}"), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments
