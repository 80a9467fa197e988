"""Export of rollouts as OpenEnv's `TrainingTrace`: one document per rollout, with the exact tokens of each turn.

The format is schema_version 1 of openenv 0.10.0 (`openenv.core.harness.TrainingTrace`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import cast

from pydantic import JsonValue

from agentrl.store.exporters.selection import Groups, Selection
from agentrl.store.stored import StoredRollout
from agentrl.types.messages import Message
from agentrl.types.trajectory import Author, Segment, Trajectory

SCHEMA_VERSION = 1
COLUMNS = ("trajectories.segments", "trajectories.weight")
"""Columns of a store that only this export reads."""
OWN = "agentrl"
"""Key for agentrl's values in the `metadata` of a turn. The format allows any keys in `metadata`."""
NOT_EXPORTED = "advantages, tool outcomes and times, routed experts, weights of trajectories"
"""Data that a trace cannot hold."""


def trace_rows(groups: Groups, selection: Selection) -> Iterator[Mapping[str, JsonValue]]:
    """Yield one trace per rollout: each sampled turn with its context, log-probabilities and loss mask.

    The format has no fields for rewards and task, so both are saved in the metadata of the first turn.
    """
    for group in groups:
        for stored in selection.rollouts(group):
            if reason := _why_not(stored):
                selection.skipped[reason] += 1
            else:
                yield {"schema_version": SCHEMA_VERSION, "turns": list(_turns(stored, selection.offered(stored.task)))}


def _why_not(stored: StoredRollout) -> str:
    trajectories = stored.rollout.trajectories
    segments = list(chain.from_iterable(trajectory.segments for trajectory in trajectories))
    if any(trajectory.media for trajectory in trajectories):
        return "rollouts with images"
    if any(segment.author is Author.DEMONSTRATION for segment in segments):
        return "rollouts that no model sampled"
    return "" if any(segment.author is Author.MODEL for segment in segments) else "rollouts without tokens"


def _turns(stored: StoredRollout, tools: Sequence[JsonValue]) -> Iterator[JsonValue]:
    about: dict[str, JsonValue] = {"rollout": _about(stored)}
    for number, trajectory in enumerate(stored.rollout.trajectories):
        before: list[int] = []
        answers = _answers(trajectory)
        for position, segment in enumerate(trajectory.segments):
            if segment.author is Author.MODEL:
                answer = next(answers, None)
                yield _turn(f"{stored.task.uid}/{stored.number}/{number}/{position}", before, segment, trajectory) | {
                    "request": _request(trajectory.messages, answer, tools),
                    "response": _response(trajectory.messages, answer),
                    "metadata": {OWN: {**_origin(segment), "trajectory": number, **about}},
                }
                about = {}
            before = [*before, *segment.token_ids]


def _turn(node_id: str, before: Sequence[int], segment: Segment, trajectory: Trajectory) -> dict[str, JsonValue]:
    mask: list[JsonValue] = [*[0] * len(before), *[int(trajectory.weight != 0)] * len(segment)]
    return {
        "node_id": node_id,
        "prompt_token_ids": list(before),
        "completion_token_ids": list(segment.token_ids),
        "per_token_logps": [min(float(each), 0.0) for each in segment.logprobs or ()],  # OpenEnv refuses values > 0
        "loss_mask": mask,
    }


def _answers(trajectory: Trajectory) -> Iterator[int]:
    """Yield for each sampled turn the index of its message; nothing if there are fewer model messages than turns."""
    positions = [at for at, message in enumerate(trajectory.messages) if message["role"] == "assistant"]
    num_sampled = sum(segment.author is Author.MODEL for segment in trajectory.segments)
    yield from positions[-num_sampled:] if len(positions) >= num_sampled else ()


def _request(messages: Sequence[Message], answer: int | None, tools: Sequence[JsonValue]) -> dict[str, JsonValue]:
    if answer is None:
        return {}
    shown = cast("list[JsonValue]", messages[:answer])
    return {"messages": shown, **({"tools": list(tools)} if tools else {})}


def _response(messages: Sequence[Message], answer: int | None) -> dict[str, JsonValue]:
    return {} if answer is None else {"choices": [{"message": cast(JsonValue, messages[answer])}]}


def _origin(segment: Segment) -> dict[str, JsonValue]:
    return {
        "temperature": segment.temperature,
        "policy_versions": [[span.version, span.num_tokens] for span in segment.policy_versions],
    }


def _about(stored: StoredRollout) -> dict[str, JsonValue]:
    task = stored.task
    return {
        "uid": task.uid,
        "number": stored.number,
        "step": stored.step,
        "data_source": task.data_source,
        "ground_truth": task.ground_truth,
        "rewards": dict(stored.rollout.rewards),
        "stop": stored.rollout.stop.value,
    }
