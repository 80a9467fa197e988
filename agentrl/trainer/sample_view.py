"""samples.json: rollouts as text that a person can read, one entry a rollout."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import NotRequired, TypedDict

from pydantic import JsonValue

from agentrl.attempt import Rollout
from agentrl.task import Task

TextOf = Callable[[Sequence[int]], str]
"""Tokens to text, special tokens included."""

_JOINERS = "\u200c\u200d"  # parts of emoji and of several scripts: invisible, but harmless and meant


class SampleSegment(TypedDict):
    """A run of tokens by one author (an `Author`'s value), as text; `trajectory` counts from 0."""

    author: str
    text: str
    num_tokens: int
    trajectory: int


class SampleToolCall(TypedDict):
    """One call the model made; `outcome` is an `Outcome`'s value."""

    name: str
    arguments: str
    result: str
    outcome: str
    duration_s: float


class SampleView(TypedDict):
    """One entry of samples.json; `stop` is a `Stop`'s value, `step` the training step it was sampled at."""

    uid: str
    data_source: str
    ground_truth: JsonValue
    reward: float
    rewards: dict[str, float]
    stop: str
    error: str | None
    num_turns: int
    tool_calls: list[SampleToolCall]
    segments: list[SampleSegment]
    step: NotRequired[int]


def sample_view(task: Task, rollout: Rollout, text_of: TextOf, step: int | None = None) -> SampleView:
    """The entry of one rollout: plain data, ready for JSON."""
    view = SampleView(
        uid=task.uid,
        data_source=task.data_source,
        ground_truth=task.ground_truth,
        reward=rollout.reward,
        rewards=dict(rollout.rewards),
        stop=rollout.stop.value,
        error=rollout.error,
        num_turns=sum(trajectory.num_turns for trajectory in rollout.trajectories),
        tool_calls=[
            SampleToolCall(
                name=call.name,
                arguments=call.arguments,
                result=call.result,
                outcome=call.outcome.value,
                duration_s=call.duration_s,
            )
            for call in rollout.tool_calls
        ],
        segments=list(segments(rollout, text_of)),
    )
    if step is not None:
        view["step"] = step
    return view


def segments(rollout: Rollout, text_of: TextOf) -> Iterator[SampleSegment]:
    """What was said in a rollout, in order."""
    for number, trajectory in enumerate(rollout.trajectories):
        for segment in trajectory.segments:
            yield SampleSegment(
                author=segment.author.value,
                text=text_of(segment.token_ids),
                num_tokens=len(segment),
                trajectory=number,
            )


def visible(text: str) -> str:
    """`text` with characters that hide or reorder what is shown (controls, bidi marks, lone surrogates) written out.

    A model or a tool may have written anything: escape sequences that drive a terminal, or marks that turn text around.
    """
    return text if text.isascii() and text.isprintable() else "".join(map(_visible_character, text))


def _visible_character(character: str) -> str:
    if character in "\n\t" or character in _JOINERS or unicodedata.category(character) not in ("Cc", "Cf", "Cs"):
        return character
    return f"⟨U+{ord(character):04X}⟩"
