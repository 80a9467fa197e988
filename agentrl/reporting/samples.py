"""samples.json: rollouts as readable text, one entry per rollout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, NotRequired, TypedDict

from pydantic import JsonValue

from agentrl.types.rollout import Rollout
from agentrl.types.task import Task

TextOf = Callable[[Sequence[int]], str]
"""Converts tokens to text, including special tokens."""


class SampleSegment(TypedDict):
    """Consecutive tokens by one author (a value of `Author`), as text; `trajectory` counts from 0."""

    author: str
    text: str
    num_tokens: int
    trajectory: int


class SampleToolCall(TypedDict):
    """One tool call of the model; `outcome` is a value of `Outcome`."""

    name: str
    arguments: str
    result: str
    outcome: str
    duration_s: float


class SampleView(TypedDict):
    """One entry of samples.json. `stop` is a value of `Stop`; `step` is the training step of the rollout."""

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


class Attempts(NamedTuple):
    """Samples of one task, in the order of steps. If all samples have the same prompt, only `prompt` contains it."""

    prompt: SampleSegment | None
    samples: list[SampleView]


def by_task(samples: Sequence[SampleView]) -> list[Attempts]:
    """Group samples by task, each group in the order of steps."""
    tasks: dict[str, list[SampleView]] = {}
    for sample in samples:
        tasks.setdefault(sample["uid"], []).append(sample)
    return [_attempts(sorted(each, key=lambda sample: sample.get("step", 0))) for each in tasks.values()]


def _attempts(samples: list[SampleView]) -> Attempts:
    prompts = [sample["segments"][0] for sample in samples if sample["segments"]]
    same = len(prompts) == len(samples) and len({prompt["text"] for prompt in prompts}) == 1
    if not same or prompts[0]["author"] != "prompt":
        return Attempts(None, samples)
    return Attempts(prompts[0], [{**sample, "segments": sample["segments"][1:]} for sample in samples])


def sample_view(task: Task, rollout: Rollout, text_of: TextOf, step: int | None = None) -> SampleView:
    """Return the samples.json entry of one rollout: plain data, ready for JSON."""
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
    """Yield the segments of a rollout as text, in order."""
    for number, trajectory in enumerate(rollout.trajectories):
        for segment in trajectory.segments:
            yield SampleSegment(
                author=segment.author.value,
                text=text_of(segment.token_ids),
                num_tokens=len(segment),
                trajectory=number,
            )
