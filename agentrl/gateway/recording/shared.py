"""A key that any number of conversations share: each conversation is a separate rollout."""

from __future__ import annotations

from itertools import takewhile

from agentrl.gateway.base import Refusal, RequestError, TurnAnswer, TurnRequest
from agentrl.gateway.matching import chained, cleaned, message_digest, tools_digest
from agentrl.gateway.recording.rollouts import RunningRollout, RunningRollouts, TooManyError


class SharedSession:
    """Passes a request to the rollout that the request continues or repeats; any other request opens a rollout.

    Implements `GatewaySession`. If too many rollouts are running, the rollout that was idle for the longest time ends.

    Args:
        rollouts: the running rollouts, in groups of one rollout.
    """

    def __init__(self, rollouts: RunningRollouts) -> None:
        self._rollouts = rollouts
        self._by_beginning: dict[bytes, list[RunningRollout]] = {}
        self._beginnings: dict[RunningRollout, bytes] = {}
        self._answers: dict[str, RunningRollout] = {}  # answers that are not delivered yet
        rollouts.on_end = self._forget

    async def answer(self, request: TurnRequest) -> TurnAnswer:
        """See `GatewaySession.answer`."""
        running = self._known(request) or await self._open(request)
        answer = await running.answer(request)
        self._answers[answer.turn_id] = running
        return answer

    def delivered(self, turn_id: str) -> None:
        """See `GatewaySession.delivered`."""
        if running := self._answers.pop(turn_id, None):
            running.delivered(turn_id)

    def count_tokens(self, request: TurnRequest) -> int:
        """See `GatewaySession.count_tokens`."""
        return (self._known(request) or self._rollouts).count_tokens(request)

    def _known(self, request: TurnRequest) -> RunningRollout | None:
        same = self._by_beginning.get(_beginning(request), ())
        return next((running for running in reversed(same) if running.knows(request)), None)

    async def _open(self, request: TurnRequest) -> RunningRollout:
        try:
            running = self._rollouts.open_shared()
        except TooManyError:
            await self._rollouts.end_longest_idle()
            try:
                running = self._rollouts.open_shared()
            except TooManyError as error:
                raise RequestError(Refusal.FAILED, str(error)) from error
        beginning = _beginning(request)
        self._by_beginning.setdefault(beginning, []).append(running)
        self._beginnings[running] = beginning
        return running

    def _forget(self, running: RunningRollout) -> None:
        if (beginning := self._beginnings.pop(running, None)) is None:
            return
        self._by_beginning[beginning].remove(running)
        if not self._by_beginning[beginning]:
            del self._by_beginning[beginning]
        for turn_id in [turn_id for turn_id, each in self._answers.items() if each is running]:
            del self._answers[turn_id]


def _beginning(request: TurnRequest) -> bytes:
    """Return a digest of the tools and of the messages before the first answer.

    All requests of a conversation repeat these tools and messages.
    """
    digest = tools_digest(request.tools)
    for message in takewhile(lambda each: each["role"] != "assistant", cleaned(request.messages)):
        digest = chained(digest, message_digest(message))
    return digest
