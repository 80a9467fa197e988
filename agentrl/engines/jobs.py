"""A request under way, and the conversation whose KV it uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from agentrl.engines.base import Completion, FinishReason, GenerateRequest
from agentrl.engines.paged_kv import IntArray
from agentrl.trajectory import VersionSpan


@dataclass(eq=False, slots=True)
class Conversation:
    """The KV of one session: that of `token_ids[:num_cached]` lies in `blocks`.

    Attributes:
        reserved: blocks it may grow to, counted against the capacity.
        num_indexed: leading full blocks that others can find by their tokens.
        prefilled_only: all of it was computed by prefill, so its bits depend on the tokens alone.
        origin: which parts were prefilled and which decoded, as a hash: with it the tokens decide the bits.
        last_used: when its latest turn ended, in turns of the engine.
    """

    session: str
    token_ids: list[int] = field(default_factory=list)
    num_cached: int = 0
    blocks: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    reserved: int = 0
    num_indexed: int = 0
    prefilled_only: bool = True
    origin: int = 0
    busy: bool = False
    last_used: int = 0


@dataclass(eq=False, slots=True)
class Job:
    """One request. `resolve` takes its completion or its error, once, from the engine's thread.

    Attributes:
        stop_token_ids: tokens that end it.
        token_ids: the context, then what was sampled.
        mark: a hash of `token_ids`.
        logprobs: one a sampled token.
        max_length: context and completion together never get longer.
    """

    request: GenerateRequest
    resolve: Callable[[Completion | Exception], None]
    seed: int
    stop_token_ids: frozenset[int]
    max_length: int
    conversation: Conversation | None = None
    token_ids: list[int] = field(default_factory=list)
    mark: int = 0
    logprobs: list[float] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    num_reused: int = 0

    def add(self, token_id: int, logprob: float, version: int) -> None:
        """One more sampled token."""
        self.token_ids.append(token_id)
        self.mark = hash((self.mark, token_id))
        self.logprobs.append(logprob)
        if self.spans and self.spans[-1].version == version:
            self.spans[-1] = VersionSpan(version, self.spans[-1].num_tokens + 1)
        else:
            self.spans.append(VersionSpan(version, 1))

    def completion(self, reason: FinishReason, matched_stop: str | None = None) -> Completion:
        """What was sampled so far."""
        sampled = self.token_ids[len(self.token_ids) - len(self.logprobs) :]
        return Completion(sampled, self.logprobs, tuple(self.spans), reason, self.num_reused, matched_stop)


def twins(jobs: Iterable[Job]) -> list[list[Job]]:
    """Jobs of one context, computed alike so far, side by side: a single row serves them all.

    Siblings share their prompt, and often agree on their first tokens: until they differ, they cost what one costs.
    """
    found: dict[tuple[int, ...], list[Job]] = {}
    for job in jobs:
        conversation = conversation_of(job)
        alike = found.setdefault((conversation.origin, conversation.num_cached, job.mark), [])
        if alike and alike[0].token_ids != job.token_ids:  # the hash alone is the same
            alike = found.setdefault((id(job),), [])
        alike.append(job)
    return list(found.values())


def conversation_of(job: Job) -> Conversation:
    """The conversation of a job that runs."""
    assert job.conversation is not None, "only running jobs have a conversation"
    return job.conversation
