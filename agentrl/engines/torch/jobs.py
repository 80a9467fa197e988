"""A running request, and the conversation whose KV it uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from agentrl.engines.base import Completion, FinishReason, GenerateRequest
from agentrl.engines.torch.paged_kv import IntArray
from agentrl.types.trajectory import VersionSpan


@dataclass(eq=False, slots=True)
class KVSession:
    """KV of one session: `blocks` contain the KV of `token_ids[:num_cached]`.

    Attributes:
        reserved: number of blocks reserved for the session, counted against the capacity.
        num_indexed: number of leading full blocks that other conversations can find in the `PrefixIndex`.
        prefilled_only: whether all KV was computed by prefill, so that equal tokens give bit-identical KV.
        origin: hash that tells which tokens were prefilled and which were decoded. Sessions with equal tokens and equal
            `origin` have bit-identical KV.
        last_used: number of turns that the engine had finished when the session's last turn ended.
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
    """One request. The engine's thread calls `resolve` once, with the completion or an error.

    Attributes:
        stop_token_ids: tokens that end the completion.
        token_ids: context and sampled tokens.
        mark: hash of `token_ids`.
        logprobs: log-probability of each sampled token.
        max_length: maximum length of context plus completion.
    """

    request: GenerateRequest
    resolve: Callable[[Completion | Exception], None]
    seed: int
    stop_token_ids: frozenset[int]
    max_length: int
    conversation: KVSession | None = None
    token_ids: list[int] = field(default_factory=list)
    mark: int = 0
    logprobs: list[float] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    num_reused: int = 0

    def add(self, token_id: int, logprob: float, version: int) -> None:
        """Append a sampled token."""
        self.token_ids.append(token_id)
        self.mark = hash((self.mark, token_id))
        self.logprobs.append(logprob)
        if self.spans and self.spans[-1].version == version:
            self.spans[-1] = VersionSpan(version, self.spans[-1].num_tokens + 1)
        else:
            self.spans.append(VersionSpan(version, 1))

    def completion(self, reason: FinishReason, matched_stop: str | None = None) -> Completion:
        """Completion with the tokens sampled so far."""
        sampled = self.token_ids[len(self.token_ids) - len(self.logprobs) :]
        return Completion(sampled, self.logprobs, tuple(self.spans), reason, self.num_reused, matched_stop)


def identical_contexts(jobs: Iterable[Job]) -> list[list[Job]]:
    """Group jobs with equal tokens and bit-identical KV.

    KV is bit-identical if the same tokens were prefilled and the same tokens were decoded. The next token of the whole
    group is computed in one batch row. Rollouts of the same task share their prompt and often their first tokens. Until
    the rollouts differ, they cost together as much as one rollout.
    """
    found: dict[tuple[int, ...], list[Job]] = {}
    for job in jobs:
        conversation = conversation_of(job)
        same = found.setdefault((conversation.origin, conversation.num_cached, job.mark), [])
        if same and same[0].token_ids != job.token_ids:  # hash collision
            same = found.setdefault((id(job),), [])
        same.append(job)
    return list(found.values())


def conversation_of(job: Job) -> KVSession:
    """The conversation of a running job."""
    assert job.conversation is not None, "only running jobs have a conversation"
    return job.conversation
