"""What an agent did, in tokens: segments and trajectories (design, sections 1 and 3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from agentrl.messages import Message

if TYPE_CHECKING:
    from torch import Tensor

V = TypeVar("V")


class Author(StrEnum):
    """Who wrote a segment. The loss mask follows from this alone."""

    PROMPT = "prompt"
    MODEL = "model"
    TOOL = "tool"
    USER = "user"
    DEMONSTRATION = "demonstration"  # trained, but sampled by nobody: SFT, imported dialogues

    @property
    def trained(self) -> bool:
        """Whether tokens of this author are trained on."""
        return self is Author.MODEL or self is Author.DEMONSTRATION


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """`num_tokens` consecutive sampled tokens, and the policy version whose weights sampled them."""

    version: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens by one author.

    Attributes:
        token_ids: the tokens, exactly as sampled or rendered; never empty for the model.
        logprobs: one a token, natural log, of the behaviour distribution softmax(logits / temperature);
            exactly when the author is the model.
        policy_versions: which weights sampled which tokens, in order; exactly when the author is the model.
        temperature: the sampling temperature of a model segment; 1 otherwise.
        media: content hashes of images or video that belong to these tokens.

    Raises:
        ValueError: the numbers do not match the tokens.
    """

    author: Author
    token_ids: Sequence[int]
    logprobs: Sequence[float] | None = None
    policy_versions: Sequence[VersionSpan] = ()
    temperature: float = 1.0
    media: Sequence[str] = ()

    def __post_init__(self) -> None:
        if (self.author is Author.MODEL) != (self.logprobs is not None):
            raise ValueError(f"a {self.author} segment has logprobs exactly when the model wrote it")
        if self.logprobs is not None and len(self.logprobs) != len(self.token_ids):
            raise ValueError(f"{len(self.logprobs)} logprobs for {len(self.token_ids)} tokens")
        covered = sum([span.num_tokens for span in self.policy_versions])  # every segment that is read passes here
        if covered != (len(self.token_ids) if self.author is Author.MODEL else 0):
            raise ValueError(f"policy versions cover {covered} of {len(self.token_ids)} {self.author} tokens")

    def __len__(self) -> int:
        return len(self.token_ids)


class Trajectory:
    """An append-only list of segments; everything else about it is derived from them.

    The prompt [1 2] asks, the model calls a tool [3 4], the tool replies [5], the model answers [6]:

        token_ids = [1 2 3 4 5 6]      loss_mask = [0 0 1 1 0 1]

    `messages` is the same conversation as text and structured calls, for rewards and readers. `images` has the bytes of
    the segments' media, by content hash, while the rollout is in memory; the store keeps them beside.
    """

    __slots__ = ("_routed_experts", "_segments", "_token_ids", "images", "messages")

    def __init__(self, segments: Sequence[Segment] = (), messages: Sequence[Message] = ()) -> None:
        self._segments: list[Segment] = []
        self._token_ids: list[int] = []  # grown by append, so that a long conversation is not joined anew each turn
        self._routed_experts: list[Tensor] = []
        self.messages: list[Message] = list(messages)
        self.images: dict[str, bytes] = {}
        for segment in segments:
            self.append(segment)

    def append(self, segment: Segment) -> None:
        """Add what came next; an empty segment adds nothing."""
        if segment.token_ids:
            self._segments.append(segment)
            self._token_ids.extend(segment.token_ids)

    def keep_routed_experts(self, experts: Tensor | None) -> None:
        """Keep what a completion says of all tokens so far but the last, [T - 1, layers, top k]; None says nothing.

        Where a token's experts are known already they stay: those of the pass that sampled after it.

        Raises:
            ValueError: they are of more tokens than predict another.
        """
        if experts is None:
            return
        if len(experts) >= max(1, len(self._token_ids)):
            raise ValueError(f"routed experts of {len(experts)} tokens, where {len(self._token_ids)} are known")
        known = sum(map(len, self._routed_experts))
        if len(experts) > known:
            new = experts[known:]  # one number for each token, layer and choice: kept in as few bytes as hold it
            self._routed_experts.append(new.byte() if int(new.max()) < 256 else new.short())

    @property
    def media(self) -> list[str]:
        """The content hashes of all media, in order."""
        return [name for segment in self._segments for name in segment.media]

    @property
    def segments(self) -> Sequence[Segment]:
        """The segments, in order."""
        return self._segments

    @property
    def token_ids(self) -> Sequence[int]:
        """All tokens, [T]. A view that grows with the trajectory: copy it to keep it."""
        return self._token_ids

    @property
    def routed_experts(self) -> Tensor | None:
        """[R, layers, top k], R < T: the experts that the first R tokens were sent to; None where none are known.

        After a model turn R is T - 1: the last token predicts nothing yet. uint8 where that holds them, else int16.
        """
        if len(self._routed_experts) > 1:
            import torch

            self._routed_experts = [torch.cat(self._routed_experts)]
        return self._routed_experts[0] if self._routed_experts else None

    @property
    def loss_mask(self) -> list[int]:
        """[T], 1 where the token is trained on."""
        return self._per_token(lambda segment: [int(segment.author.trained)] * len(segment))

    @property
    def logprobs(self) -> list[float]:
        """[T], the behaviour log-probability of sampled tokens, 0 elsewhere: read it through the mask."""
        return self._per_token(lambda segment: segment.logprobs or [0.0] * len(segment))

    @property
    def temperatures(self) -> list[float]:
        """[T], the sampling temperature of sampled tokens, 1 elsewhere."""
        return self._per_token(lambda segment: [segment.temperature] * len(segment))

    @property
    def sampled(self) -> bool:
        """Whether every trained token was sampled by a model, so that ratios exist."""
        return not any(segment.author is Author.DEMONSTRATION for segment in self._segments)

    @property
    def num_turns(self) -> int:
        """How many turns the model (or the demonstration) took."""
        return sum(segment.author.trained for segment in self._segments)

    @property
    def num_response_tokens(self) -> int:
        """How many tokens follow the first prompt segment."""
        return len(self._token_ids) - (len(self._segments[0]) if self._segments else 0)

    @property
    def num_trained_tokens(self) -> int:
        """How many tokens are trained on."""
        return sum(len(segment) for segment in self._segments if segment.author.trained)

    def _per_token(self, values: Callable[[Segment], Sequence[V]]) -> list[V]:
        return list(chain.from_iterable(map(values, self._segments)))
