"""Tools that answer from the calls that a rollout recorded, and run nothing."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Literal, Self, TypeAlias

from pydantic import JsonValue

from agentrl.attempt import Outcome, ToolCall
from agentrl.chat.base import ParsedCall
from agentrl.config.rollout import MultiTurnConfig
from agentrl.errors import ConfigError, DataError
from agentrl.messages import ToolSchema
from agentrl.task import Task
from agentrl.tools.answer import Answer
from agentrl.tools.arguments import shorten
from agentrl.tools.bound import BoundTool
from agentrl.tools.toolbox import Toolbox, ToolSession

Unrecorded: TypeAlias = Literal["error", "stub", "live"]

_NOT_RUN = (Outcome.LIMIT_ERROR, Outcome.ABORTED)


class Recording:
    """The calls of one rollout, each answered once: equal ones in the order they were recorded.

    Two calls are equal if their names are, and their arguments as JSON: blanks and the order of keys do not matter.
    Calls that were never run have no answer to give; images of an answer are not recorded, its text is.

    Args:
        uid: of the task that was attempted.
        rewards: what the tools gave the whole rollout.

    Attributes:
        num_answered: calls answered so far.
        unrecorded: the others, as text.
    """

    def __init__(self, uid: str, calls: Sequence[ToolCall], rewards: Mapping[str, float]) -> None:
        self.uid = uid
        self.rewards = dict(rewards)
        self.num_answered = 0
        self.unrecorded: list[str] = []
        self._waiting: dict[tuple[str, str], deque[ToolCall]] = defaultdict(deque)
        for call in calls:
            if call.outcome not in _NOT_RUN:
                self._waiting[call.name, _normalised(call.arguments)].append(call)

    def take(self, call: ParsedCall) -> ToolCall | None:
        """What was recorded of it; None where nothing is left. A malformed call only had a format error."""
        waiting = self._waiting.get((call.name, _normalised(call.arguments)))
        if not waiting or (call.error is not None and waiting[0].outcome is not Outcome.FORMAT_ERROR):
            return None
        self.num_answered += 1
        return waiting.popleft()


class RecordedToolbox(Toolbox):
    """The tools of a stored run as its models were told of them; `playing` puts a recording in.

    A session is refused (DataError) to another task than the recorded one.

    A call that was not recorded is first read as a live one: what is wrong with it is a `format_error`. Else

    - `error`: it ends the rollout, as an `infra_error` that names the call: the recording, not the policy, is short
    - `stub`: it is answered that it was not recorded, as a `tool_error`: it counts. The rollout goes on
    - `live`: the tool of `live` runs, in whatever state it is without the recorded calls before it

    Args:
        schemas: of the stored run.

    Raises:
        ConfigError: `live` lacks a tool.
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
            if unrecorded == "live" and (live is None or schema.name not in live.tools):
                raise ConfigError(f"the recorded tool '{schema.name}' is not among those that are to run live")
            deadline_s = live.tools[schema.name].deadline_s if self.live and live else multi_turn.tool_timeout_s
            self.tools[schema.name] = BoundTool(schema, deadline_s, self._offload)

    def playing(self, recording: Recording) -> Self:
        """The same tools, which answer from `recording`."""
        other = copy(self)
        other.recording = recording
        return other

    def _open(self, task: Task) -> ToolSession:
        if task.uid != self.recording.uid:
            raise DataError(f"recorded are the calls of task '{self.recording.uid}', not those of '{task.uid}'")
        return _RecordedSession(self, task)


class _RecordedSession(ToolSession):
    def __init__(self, toolbox: RecordedToolbox, task: Task) -> None:
        super().__init__(toolbox, task)
        self._recording = toolbox.recording
        self._unrecorded = toolbox.unrecorded
        self._live = toolbox.live.session(task) if toolbox.live else None
        if self._live:
            self._live.data = self.data

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

    async def finish(self) -> None:
        """The rewards of the whole rollout: those recorded, and of tools that have none there, those of live ones."""
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
