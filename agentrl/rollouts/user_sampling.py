"""Samples answers of simulated users with the run's engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

from agentrl.engines.base import Completion, Engine, FinishReason, GenerateRequest, SamplingParams
from agentrl.tools.base import InfraError
from agentrl.types.messages import ChatAnswer, Message

if TYPE_CHECKING:
    from agentrl.chat.format import ChatFormat

_SERIAL = count()  # the number is part of session names; no result depends on it


class UserSampling:
    """Implementation of the protocol `interactions.base.Sample` for one rollout.

    The object may be called on any event loop; the engine runs on the event loop that ran the constructor. Each answer
    uses its own session. The session is released once the answer is sampled, so that its KV cache is free during the
    policy's next turn.

    Args:
        priority: requests with higher priority are sampled first if the engine is busy.
    """

    def __init__(self, engine: Engine, chat: ChatFormat, priority: int = 0) -> None:
        self._engine, self._chat, self._priority = engine, chat, priority
        self._home = asyncio.get_running_loop()

    async def __call__(
        self, messages: Sequence[Message], *, seed: int, temperature: float = 1.0, max_tokens: int = 512
    ) -> ChatAnswer:
        """See `interactions.base.Sample`."""
        sampling = SamplingParams(
            temperature, max_new_tokens=max_tokens, stop_token_ids=self._chat.stop_token_ids, seed=seed
        )
        sampled = asyncio.run_coroutine_threadsafe(self._sampled(list(messages), sampling), self._home)
        return await asyncio.wrap_future(sampled)

    async def _sampled(self, messages: Sequence[Message], sampling: SamplingParams) -> ChatAnswer:
        token_ids, session = self._chat.start_untrusted(messages), f"user-{next(_SERIAL)}"
        try:
            completion = await self._engine.generate(
                GenerateRequest(token_ids, sampling, session, priority=self._priority)
            )
        except ValueError as error:  # the conversation is longer than the model's context
            raise InfraError(f"the simulated user's conversation does not fit the model: {error}") from error
        finally:
            await self._engine.release(session)
        return self._answer(len(token_ids), completion)

    def _answer(self, num_prompt: int, completion: Completion) -> ChatAnswer:
        if completion.finish_reason is FinishReason.ABORT:
            raise InfraError("the simulated user's answer was aborted")
        cut = completion.finish_reason is FinishReason.LENGTH
        return ChatAnswer(self._chat.text(completion.token_ids), cut, num_prompt, len(completion.token_ids))
