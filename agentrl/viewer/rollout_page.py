"""A rollout as JSON values for the page. Texts from the model, tools and dataset are unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TypedDict

from agentrl.store import StoredRollout
from agentrl.store.text import write_json
from agentrl.types.messages import Message, message_text
from agentrl.types.trajectory import Segment, Trajectory
from agentrl.viewer.branches import branches
from agentrl.viewer.tokens import TokenTexts


class ShownCall(TypedDict):
    """A tool call in a message, with its arguments as text."""

    name: str
    arguments: str


class ShownMessage(TypedDict):
    """A message, with its content as text."""

    role: str
    thoughts: str
    text: str
    calls: list[ShownCall]


def shown_rollout(stored: StoredRollout, tokens: TokenTexts) -> dict[str, object]:
    """Return all values of a rollout.

    The seed is a string, because it may be too large for a JavaScript integer. JSON from the dataset is also a string,
    because it may be nested very deeply.
    """
    rollout, task = stored.rollout, stored.task
    return {
        "step": stored.step,
        "uid": task.uid,
        "number": stored.number,
        "source": task.data_source,
        "index": task.index,
        "agent_name": task.agent_name,
        "ground_truth": _text(task.ground_truth),
        "extra_info": _text(task.extra_info),
        "stop": rollout.stop,
        "error": rollout.error,
        "infra_failed": rollout.infra_failed,
        "excluded": stored.excluded,
        "seed": str(rollout.seed),
        "duration_s": rollout.duration_s,
        "reward": rollout.rewards.get("score"),
        "rewards": rollout.rewards,
        "tool_rewards": rollout.tool_rewards,
        "turn_rewards": [asdict(reward) for reward in rollout.turn_rewards],
        "tool_calls": [asdict(call) for call in rollout.tool_calls],
        "facts": {name: _text(value) for name, value in rollout.facts.items()},
        "versions": sorted(set(rollout.policy_versions)),
        "tokens_note": tokens.note,
        "branches": branches(rollout),
        "trajectories": [
            _trajectory(trajectory, advantages, tokens)
            for trajectory, advantages in zip(rollout.trajectories, stored.advantages, strict=True)
        ],
    }


def shown_messages(messages: object) -> list[ShownMessage]:
    """Convert messages to text; malformed messages are shown as JSON."""
    return [_message(message) for message in messages] if isinstance(messages, list) else []


def _message(message: Message | object) -> ShownMessage:
    if not isinstance(message, dict):
        return {"role": "", "thoughts": "", "text": _text(message), "calls": []}
    calls = message.get("tool_calls")
    return {
        "role": str(message.get("role", "")),
        "thoughts": _text(message.get("reasoning_content", "")),
        "text": message_text(message, write_json),
        "calls": [_call(call) for call in calls] if isinstance(calls, list) else [],
    }


def _call(call: object) -> ShownCall:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return {"name": "", "arguments": _text(call)}
    return {"name": str(function.get("name", "")), "arguments": _text(function.get("arguments"))}


def _text(value: object) -> str:
    return value if isinstance(value, str) else write_json(value)


def _trajectory(trajectory: Trajectory, advantages: Sequence[float] | None, tokens: TokenTexts) -> Mapping[str, object]:
    return {
        "messages": shown_messages(trajectory.messages),
        "segments": list(_segments(trajectory.segments, advantages, tokens)),
    }


def _segments(
    segments: Sequence[Segment], advantages: Sequence[float] | None, tokens: TokenTexts
) -> Iterator[dict[str, object]]:
    start = 0
    for segment in segments:
        end = start + len(segment)
        yield {
            "author": segment.author,
            "ids": segment.token_ids,
            "texts": tokens.texts(segment.token_ids),
            "logprobs": segment.logprobs,
            "advantages": advantages and advantages[start:end],
            "versions": [(span.version, span.num_tokens) for span in segment.policy_versions],
            "temperature": segment.temperature,
            "media": segment.media,
        }
        start = end
