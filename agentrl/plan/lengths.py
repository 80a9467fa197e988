"""Lengths of rollouts: turns, tokens and tool latencies, drawn from a configured distribution."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, Self

from pydantic import PositiveFloat, PositiveInt, model_validator

from agentrl.config.base import Section
from agentrl.types.sample import Sample
from agentrl.utils.seeds import derive_seed

_Z95 = 1.6448536269514722
"""95th percentile of the standard normal distribution."""
_MAX_RATIO = math.exp(_Z95**2 / 2)
"""Largest p95 / mean of a lognormal distribution."""


class Turn(NamedTuple):
    """One turn of the model.

    Attributes:
        context: number of tokens before the turn.
        new: number of tokens at the end of the context that no earlier turn of the rollout computed.
        sampled: number of tokens that the model samples.
        wait_s: seconds of the tools between this turn and the next; after the last turn, seconds of the reward.
    """

    context: int
    new: int
    sampled: int
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RolloutLengths:
    """Lengths of one rollout.

    Attributes:
        turns: the turns, in order.
        trajectories: number of tokens of each trajectory in training.
        prompt: number of first tokens that all rollouts of a task have in common.
        shared: for each trajectory, the number of first tokens that it shares with another trajectory of the task. With
            `actor.share_prefixes`, training computes these tokens only in the other trajectory. Empty: no shared
            tokens.
    """

    turns: tuple[Turn, ...]
    trajectories: tuple[int, ...]
    prompt: int
    shared: tuple[int, ...] = ()

    @property
    def num_sampled(self) -> int:
        """Number of tokens that the model samples."""
        return sum(turn.sampled for turn in self.turns)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all trajectories."""
        return sum(self.trajectories)

    def samples(self, rollout_id: str, uid: str, *, share: bool) -> Iterator[Sample]:
        """Yield a sample for each trajectory. Its token ids are placeholders: the positions that training computes.

        Args:
            share: whether to leave out shared tokens.
        """
        shared = self.shared if share and self.shared else (0,) * len(self.trajectories)
        for length, start in zip(self.trajectories, shared, strict=True):
            if length:
                yield Sample(range(min(start, length - 1), length), (), (), (), rollout_id=rollout_id, uid=uid)


class Lengths(Protocol):
    """Source of lengths."""

    def group(self, number: int, size: int) -> Sequence[RolloutLengths]:
        """Return the lengths of the `size` rollouts of task `number`; the same arguments give the same lengths."""
        ...


class Remembered:
    """Cache of lengths: each group is drawn only once."""

    def __init__(self, lengths: Lengths) -> None:
        self._lengths, self._drawn = lengths, dict[tuple[int, int], Sequence[RolloutLengths]]()

    def group(self, number: int, size: int) -> Sequence[RolloutLengths]:
        """See `Lengths.group`."""
        if (found := self._drawn.get((number, size))) is None:
            found = self._drawn[number, size] = self._lengths.group(number, size)
        return found


@dataclass(frozen=True, slots=True)
class Rows:
    """Lengths for runs that train on dataset rows and sample nothing.

    Each row has the trajectories of a rollout in `lengths`, but no turns.
    """

    lengths: Lengths

    def group(self, number: int, size: int) -> Sequence[RolloutLengths]:
        """See `Lengths.group`."""
        return [replace(each, turns=()) for each in self.lengths.group(number, size)]


class Spread(Section):
    """A lognormal distribution of non-negative numbers, or a constant."""

    mean: PositiveFloat
    """The mean, before values are cut off at `most`."""
    p95: PositiveFloat | None = None
    """The 95th percentile. None: all values equal the mean."""
    most: PositiveFloat | None = None
    """Larger values become this value."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.p95 is not None and not self.mean <= self.p95 <= self.mean * _MAX_RATIO:
            raise ValueError(f"p95 must be between mean and {_MAX_RATIO:.3g} x mean, got {self.p95 / self.mean:.3g} x")
        return self

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm: p95 / mean = exp(z sigma - sigma^2 / 2) with z = 1.645."""
        return _Z95 - math.sqrt(_Z95**2 - 2 * math.log(self.p95 / self.mean)) if self.p95 else 0.0

    def draw(self, rng: random.Random) -> float:
        """Draw a number."""
        sigma = self.sigma
        value = rng.lognormvariate(math.log(self.mean) - sigma**2 / 2, sigma) if sigma else self.mean
        return min(value, self.most or math.inf)

    def draw_count(self, rng: random.Random, least: int = 1) -> int:
        """Draw an integer of at least `least`. Rounding is random, so that it does not change the mean."""
        return max(least, math.floor(self.draw(rng) + rng.random()))


class LengthsConfig(Section):
    """A distribution of lengths. Rollouts of a task have the same prompt length; other lengths are drawn independently.

    Example, with means: 4 turns of 300 tokens each (95% of the turns are below 900 tokens). Between two turns, tools
    take 2 s and return 500 tokens.

        {prompt_tokens: {mean: 1000}, turns: {mean: 4, p95: 9}, turn_tokens: {mean: 300, p95: 900},
         tool_tokens: {mean: 500}, tool_s: {mean: 2, p95: 6}}
    """

    prompt_tokens: Spread = Spread(mean=512)
    turns: Spread = Spread(mean=1)
    """Number of turns of the model."""
    turn_tokens: Spread = Spread(mean=512, p95=1536)
    """Number of tokens that the model samples in a turn."""
    tool_tokens: Spread = Spread(mean=256)
    """Number of tokens of the tool results between two turns."""
    tool_s: Spread | None = None
    """Seconds between two turns. None: no waiting."""
    reward_s: Spread | None = None
    """Seconds of the reward. None: no waiting."""
    max_tokens: PositiveInt | None = None
    """Maximum number of tokens of a rollout, prompt included; longer rollouts are cut off. None: unlimited."""
    seed: int = 0

    def group(self, number: int, size: int) -> Sequence[RolloutLengths]:
        """See `Lengths.group`."""
        prompt = self.prompt_tokens.draw_count(random.Random(derive_seed(self.seed, "prompt", number)))
        rngs = [random.Random(derive_seed(self.seed, "rollout", number, each)) for each in range(size)]
        first, *others = (self._rollout(rng, prompt) for rng in rngs)
        return [first, *(replace(each, shared=(prompt,)) for each in others)]

    def _rollout(self, rng: random.Random, prompt: int) -> RolloutLengths:
        turns, context, computed = list[Turn](), prompt, 0
        for left in reversed(range(self.turns.draw_count(rng))):
            sampled = min(self.turn_tokens.draw_count(rng), self._room(context))
            wait = self.tool_s if left else self.reward_s
            turns.append(Turn(context, context - computed, sampled, wait.draw(rng) if wait else 0.0))
            computed = context = context + sampled
            if left:
                context += self.tool_tokens.draw_count(rng, least=0)
            if self._room(context) <= 1:
                break
        return RolloutLengths(tuple(turns), (computed,), prompt)

    def _room(self, context: int) -> int:
        return max(1, self.max_tokens - context) if self.max_tokens else context + (1 << 60)
