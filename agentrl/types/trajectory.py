"""Token-level record of an agent's actions: segments and trajectories (docs/design.md, sections 1 and 3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from agentrl.types.messages import Message
from agentrl.utils.short_repr import counted

if TYPE_CHECKING:
    from torch import Tensor

V = TypeVar("V")


class Author(StrEnum):
    """Author of a segment. The loss mask of a segment depends only on the author and on `Trajectory.weight`."""

    PROMPT = "prompt"
    MODEL = "model"
    TOOL = "tool"
    USER = "user"
    DEMONSTRATION = "demonstration"  # trained on, but not sampled by the policy: SFT, imported dialogues

    @property
    def trained(self) -> bool:
        """Whether tokens of this author are trained on."""
        return self is Author.MODEL or self is Author.DEMONSTRATION


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """`num_tokens` consecutive sampled tokens, and the policy version whose weights sampled them."""

    version: int
    num_tokens: int


@dataclass(frozen=True, slots=True, repr=False)
class Segment:
    """Consecutive tokens of one author.

    Attributes:
        token_ids: the tokens, exactly as sampled or rendered; never empty for the model.
        logprobs: natural logarithm of each token's probability under the behaviour distribution
            softmax(logits / temperature); set if and only if the author is the model.
        policy_versions: the policy version of each sampled token, as spans in order; set if and only if the author is
            the model.
        temperature: the sampling temperature of a model segment; 1 otherwise.
        media: content hashes of images or video that belong to these tokens.

    Raises:
        ValueError: log-probabilities or policy versions do not match the tokens or the author.
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
        covered = sum([span.num_tokens for span in self.policy_versions])  # a list is faster than a generator
        if covered != (len(self.token_ids) if self.author is Author.MODEL else 0):
            raise ValueError(f"policy versions cover {covered} of {len(self.token_ids)} {self.author} tokens")

    def __len__(self) -> int:
        return len(self.token_ids)

    def __repr__(self) -> str:
        return f"Segment({self.author}, {counted(len(self), 'token')})"


class Trajectory:
    """An append-only list of segments. Token ids, masks and log-probabilities are derived from the segments.

    Example: prompt [1 2], tool call of the model [3 4], tool reply [5], answer of the model [6]:

        token_ids = [1 2 3 4 5 6]      loss_mask = [0 0 1 1 0 1]

    `weight` multiplies the advantages of the trajectory's tokens; with 0, the trajectory is kept but not trained on.

    `messages` contains the same conversation as text and structured calls, for rewards and for display. `images` maps
    content hashes to the bytes of the segments' media while the rollout is in memory. The store saves them separately.
    """

    __slots__ = ("_routed_experts", "_segments", "_token_ids", "images", "messages", "weight")

    def __init__(self, segments: Sequence[Segment] = (), messages: Sequence[Message] = (), weight: float = 1.0) -> None:
        self._segments: list[Segment] = []
        self._token_ids: list[int] = []  # extended by `append`, not rebuilt each turn
        self._routed_experts: list[Tensor] = []
        self.messages: list[Message] = list(messages)
        self.images: dict[str, bytes] = {}
        self.weight = weight
        for segment in segments:
            self.append(segment)

    def __repr__(self) -> str:
        counts = (self.num_turns, "turn"), (len(self._token_ids), "token"), (self.num_trained_tokens, "trained token")
        return f"Trajectory({', '.join(counted(*each) for each in counts)})"

    def append(self, segment: Segment) -> None:
        """Append a segment; an empty segment is ignored."""
        if segment.token_ids:
            self._segments.append(segment)
            self._token_ids.extend(segment.token_ids)

    def keep_routed_experts(self, experts: Tensor | None) -> None:
        """Store the experts of all tokens so far except the last, [T - 1, layers, top k]; None is ignored.

        Stored experts are never replaced. They come from the forward pass that sampled the next token; a later forward
        pass may route the same tokens to other experts.

        Raises:
            ValueError: there are experts for more than T - 1 tokens.
        """
        if experts is None:
            return
        if len(experts) >= max(1, len(self._token_ids)):
            raise ValueError(f"routed experts of {len(experts)} tokens, for a trajectory of {len(self._token_ids)}")
        known = sum(map(len, self._routed_experts))
        if len(experts) > known:
            self._routed_experts.append(smallest(experts[known:]))

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
        """All tokens, [T]. A view that grows with the trajectory: copy the view to keep the present tokens."""
        return self._token_ids

    @property
    def routed_experts(self) -> Tensor | None:
        """[R, layers, top k], R < T: the experts of the first R tokens; None if unknown.

        After a model turn R is T - 1, because the last token has not been processed yet. The integer type is uint8 if
        possible, else int16.
        """
        if len(self._routed_experts) > 1:
            import torch

            self._routed_experts = [torch.cat(self._routed_experts)]
        return self._routed_experts[0] if self._routed_experts else None

    @property
    def loss_mask(self) -> list[int]:
        """[T], 1 where the token is trained on."""
        return self._per_token(lambda segment: [int(self._trains(segment))] * len(segment))

    @property
    def logprobs(self) -> list[float]:
        """[T], the behaviour log-probability of sampled tokens, 0 elsewhere; use it only with `loss_mask`."""
        return self._per_token(lambda segment: segment.logprobs or [0.0] * len(segment))

    @property
    def temperatures(self) -> list[float]:
        """[T], the sampling temperature of sampled tokens, 1 elsewhere."""
        return self._per_token(lambda segment: [segment.temperature] * len(segment))

    @property
    def sampled(self) -> bool:
        """Whether a model sampled every trained token, so that importance ratios can be computed."""
        return not any(segment.author is Author.DEMONSTRATION for segment in self._segments)

    @property
    def num_turns(self) -> int:
        """Number of turns of the model or the demonstration."""
        return sum(segment.author.trained for segment in self._segments)

    @property
    def num_response_tokens(self) -> int:
        """Number of tokens after the first segment, which is the prompt."""
        return len(self._token_ids) - (len(self._segments[0]) if self._segments else 0)

    @property
    def num_trained_tokens(self) -> int:
        """Number of trained tokens."""
        return sum(len(segment) for segment in self._segments if self._trains(segment))

    def _trains(self, segment: Segment) -> bool:
        return segment.author.trained and self.weight != 0.0

    def _per_token(self, values: Callable[[Segment], Sequence[V]]) -> list[V]:
        return list(chain.from_iterable(map(values, self._segments)))


def smallest(experts: Tensor) -> Tensor:
    """Return expert ids in the smallest integer type that fits: uint8 if possible, else int16."""
    return experts.byte() if not experts.numel() or int(experts.max()) < 256 else experts.short()
