"""Connects one rollout to the engine: sessions, deadline, a seed per turn, and a record of the completions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from agentrl.agent_loops.recording import Recording
from agentrl.engines.base import Completion, Engine, FinishReason, GenerateRequest, SamplingParams
from agentrl.utils.images import data_url
from agentrl.utils.seeds import derive_seed, ids_digest

if TYPE_CHECKING:
    from agentrl.chat.format import ChatFormat

_SERIAL = count()  # the number is part of session names; no result depends on it


class RolloutGenerate:
    """Implementation of the protocol `agent_loops.base.Generate` for one rollout.

    Args:
        seed: the rollout's seed. Turn t of trajectory k samples with derive_seed(seed, k, t). If a call passes `draw`,
            the turn samples with derive_seed(seed, digest of the context, draw) instead. `draw` is the number of
            earlier turns with the same context.
        deadline: time on the running event loop's clock; None: no deadline.
        priority: rollouts with higher priority are sampled first if the engine is busy.

    Attributes:
        seed: see the argument.
        recording: all completions so far.
        cut_by_deadline: whether the deadline ended a turn.
    """

    def __init__(self, engine: Engine, *, seed: int, deadline: float | None = None, priority: int = 0) -> None:
        self.recording = Recording()
        self.cut_by_deadline = False
        self.deadline = deadline
        self._priority = priority
        self._engine = engine
        self.seed = seed
        self._serial = next(_SERIAL)
        self._num_turns: Counter[int] = Counter()

    async def __call__(
        self,
        token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        trajectory: int = 0,
        images: Sequence[bytes] = (),
        image_starts: Sequence[int] = (),
        draw: int | None = None,
    ) -> Completion:
        """Sample one turn."""
        turn = self._num_turns[trajectory]
        self._num_turns[trajectory] += 1
        num_context = len(token_ids)  # the caller's list may grow later
        seeded = replace(sampling, seed=self._turn_seed(token_ids, trajectory, turn, draw))
        request = GenerateRequest(
            *(token_ids, seeded, self._session(trajectory), self._remaining_s(), self._priority),
            images=tuple(map(data_url, images)),
            image_starts=tuple(image_starts),
        )
        completion = await self._engine.generate(request)
        self.cut_by_deadline |= completion.finish_reason is FinishReason.ABORT and self._remaining_s() == 0
        self.recording.add(token_ids, num_context, completion, sampling)
        return completion

    async def release(self) -> None:
        """Release the rollout's sessions in the engine."""
        for trajectory in self._num_turns:
            await self._engine.release(self._session(trajectory))

    def _turn_seed(self, token_ids: Sequence[int], trajectory: int, turn: int, draw: int | None) -> int:
        if draw is None:
            return derive_seed(self.seed, trajectory, turn)
        return derive_seed(self.seed, ids_digest(token_ids), draw)

    def _session(self, trajectory: int) -> str:
        return f"rollout-{self._serial}-{trajectory}"

    def _remaining_s(self) -> float | None:
        if self.deadline is None:
            return None
        return max(0.0, self.deadline - asyncio.get_running_loop().time())


def completed(sampling: SamplingParams, chat: ChatFormat, max_response_length: int) -> SamplingParams:
    """Add stop tokens and the maximum response length to `sampling`, so that loops need not set them."""
    given = sampling.max_new_tokens
    return replace(
        sampling,
        stop_token_ids=(*sampling.stop_token_ids, *chat.stop_token_ids),
        max_new_tokens=max_response_length if given is None else min(max_response_length, given),
    )
