"""The rollouts that are being recorded: each has a key, a session and a slot in its group."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from agentrl.gateway.base import Refusal, RequestError, TurnAnswer, TurnRequest
from agentrl.gateway.recording.groups import RecordedGroup, TaskFacts
from agentrl.gateway.recording.steps import StepFiles
from agentrl.gateway.server import Address, GatewayServer
from agentrl.gateway.session import Session
from agentrl.types.messages import ToolSchema
from agentrl.types.rollout import Rollout, Stop
from agentrl.types.task import Task
from agentrl.utils.seeds import derive_seed
from agentrl.utils.user_code import format_error

AGENT_NAME = "gateway"
"""Name of the agent loop in recorded rows; the real loop was another program."""


class OpenedSession(NamedTuple):
    """A new session, and a function that ends the session's use of the engine."""

    session: Session
    release: Callable[[], Awaitable[None]]


OpenSession = Callable[[Task, int], OpenedSession]
"""Opens a session for a task and the seed of its rollout."""


class Ended(NamedTuple):
    """A rollout that ended. `file` is None if nothing was saved, because the rollout has no conversation."""

    uid: str
    number: int
    rollout: Rollout
    file: Path | None


class TooManyError(Exception):
    """The maximum number of running rollouts is reached."""


class KeysError(ValueError):
    """Keys that cannot be used."""


@dataclass(eq=False)
class RunningRollout:
    """One rollout. Implements `GatewaySession` for the requests with its key.

    Attributes:
        tools: the tools of the rollout's first request.
        last_used: time of the latest request or answer, on the event loop's clock.
        address: address for the rollout's client; None: `SharedSession` passes on the requests.
    """

    key: str
    group: RecordedGroup
    number: int
    session: Session
    release: Callable[[], Awaitable[None]]
    seed: int
    started: float
    last_used: float
    num_in_flight: int = 0
    tools: Sequence[ToolSchema] = ()
    has_ended: bool = False
    address: Address | None = None
    _first: bool = field(default=True, repr=False)

    async def answer(self, request: TurnRequest) -> TurnAnswer:
        """See `GatewaySession.answer`."""
        if self.has_ended:
            raise RequestError(Refusal.ENDED, "the rollout has ended")
        if self._first:
            self.tools, self._first = request.tools, False
        self.num_in_flight += 1
        try:
            return await self.session.answer(request)
        finally:
            self.num_in_flight -= 1
            self.last_used = asyncio.get_running_loop().time()

    def delivered(self, turn_id: str) -> None:
        """See `GatewaySession.delivered`."""
        self.session.delivered(turn_id)

    def count_tokens(self, request: TurnRequest) -> int:
        """See `GatewaySession.count_tokens`."""
        return self.session.count_tokens(request)

    def knows(self, request: TurnRequest) -> bool:
        """Whether the request belongs to this rollout; used for a key that several conversations share.

        While a client waits for an answer, an equal request of another client begins another conversation, unless
        the request is marked as a repetition.
        """
        if self.session.continues(request):
            return True
        return (request.is_retry or not self.num_in_flight) and self.session.repeats(request)


class RunningRollouts:
    """Opens rollouts, finds them by key, and saves finished ones.

    Uids and seeds are derived from the run's seed and the group's index. Training derives them in the same way, so the
    audit can check them.

    Args:
        server: server that passes each request to the rollout whose key the request contains.
        group_size: number of rollouts of a task.
        max_running: maximum number of running rollouts.
        seed: the run's seed.

    Attributes:
        on_end: function that is called with each rollout that ends.
    """

    def __init__(
        self,
        open_session: OpenSession,
        server: GatewayServer,
        files: StepFiles,
        *,
        group_size: int,
        max_running: int,
        seed: int,
    ) -> None:
        self._open_session = open_session
        self._server = server
        self.files = files
        self._group_size = group_size
        self._max_running = max_running
        self._seed = seed
        self._index = files.next_index
        self._running: dict[str, RunningRollout] = {}
        self.on_end: Callable[[RunningRollout], object] = lambda running: None

    def __iter__(self) -> Iterator[RunningRollout]:
        return iter(list(self._running.values()))

    def __len__(self) -> int:
        return len(self._running)

    def find(self, key: str) -> RunningRollout | None:
        """Return the running rollout with this key."""
        return self._running.get(key)

    def count_tokens(self, request: TurnRequest) -> int:
        """Return the number of tokens of a request that belongs to no rollout yet."""
        return self._open_session(Task([]), 0).session.count_tokens(request)

    def open_group(self, facts: TaskFacts, keys: Sequence[str] = ()) -> list[RunningRollout]:
        """Open the rollouts of a new task, each with a key.

        Args:
            keys: one key per rollout; empty: new keys are made.

        Raises:
            TooManyError: the maximum number of running rollouts is reached.
            KeysError: a key is in use, or the number of keys is not the group size.
        """
        if keys and len(keys) != self._group_size:
            raise KeysError(f"expected {self._group_size} (rollout.n), got {len(keys)}")
        if len({*keys}) < len(keys) or any(self._server.has_key(key) for key in keys):
            raise KeysError("a key is in use")
        opened = self._new_group(facts)
        for number, running in enumerate(opened):
            running.address = self._server.open(running, keys[number] if keys else "")
            running.key = running.address.key
        self._running.update((each.key, each) for each in opened)
        return opened

    def open_shared(self) -> RunningRollout:
        """Open a rollout whose key is not registered at the server; `SharedSession` passes requests to the rollout.

        Raises:
            TooManyError: the maximum number of running rollouts is reached.
        """
        (running,) = self._new_group(TaskFacts())
        self._running[running.key] = running
        return running

    async def end(self, running: RunningRollout, stop: Stop | None = None, rewards: Mapping[str, float] = {}) -> Ended:
        """End a rollout, save it and forget its key. Turns that are being sampled are cancelled.

        Args:
            stop: why the rollout ended. None: `Rollout.stop` becomes the limit that was reached, or else `finished`.

        Raises:
            OSError: the file cannot be written; the rollout is saved together with the next rollout of its step.
        """
        running.has_ended = True
        del self._running[running.key]
        self.on_end(running)
        rollout = await self._recorded(running, stop)
        rollout.rewards, rollout.seed = dict(rewards), running.seed
        rollout.duration_s = max(0.0, running.last_used - running.started)
        group = running.group
        group.end(running.number, rollout, running.tools)
        file = await self.files.save(group) if group.used else None
        if running.address:
            await self._server.close(running.address)  # last, because this may raise an error of the session
        return Ended(group.task.uid, running.number, rollout, file)

    async def _recorded(self, running: RunningRollout, stop: Stop | None) -> Rollout:
        session = running.session
        await session.close()
        await running.release()
        rollout = session.rollout(stop)
        if session.failure is not None:
            rollout.stop, rollout.infra_failed = Stop.ERROR, True
            rollout.error = f"InfraError: the engine failed: {format_error(session.failure)}"
        return rollout

    async def end_idle(self, idle_s: float) -> list[Ended]:
        """End the rollouts that had no request for `idle_s` seconds."""
        now = asyncio.get_running_loop().time()
        idle = [each for each in self if not each.num_in_flight and now - each.last_used >= idle_s]
        return [await self.end(each) for each in idle if not each.has_ended]

    async def end_longest_idle(self) -> None:
        """End the rollout that has been without a request for the longest time, if there is one."""
        idle = [each for each in self if not each.num_in_flight]
        if idle:
            await self.end(min(idle, key=lambda each: each.last_used))

    async def end_all(self) -> list[Ended]:
        """End all rollouts; rollouts with a request in flight end as `aborted`."""
        ended = []
        for each in self:
            if not each.has_ended:
                ended.append(await self.end(each, Stop.ABORTED if each.num_in_flight else None))
        return ended

    def _new_group(self, facts: TaskFacts) -> list[RunningRollout]:
        if len(self._running) + self._group_size > self._max_running:
            raise TooManyError(f"{len(self._running)} rollouts are running; at most {self._max_running} may run")
        index, self._index = self._index, self._index + 1
        uid = f"{derive_seed(self._seed, 'uid', 0, index, 0):016x}"
        task = Task([], facts.ground_truth, facts.data_source, index, uid, AGENT_NAME, extra_info=facts.extra_info)
        base = derive_seed(self._seed, "train")
        group = RecordedGroup.of(task, [derive_seed(base, uid, number) for number in range(self._group_size)])
        return [self._running_rollout(group, number) for number in range(self._group_size)]

    def _running_rollout(self, group: RecordedGroup, number: int) -> RunningRollout:
        seed, now = group.rollouts[number].seed, asyncio.get_running_loop().time()
        key, opened = secrets.token_urlsafe(32), self._open_session(group.task, seed)
        return RunningRollout(key, group, number, *opened, seed, now, now)
