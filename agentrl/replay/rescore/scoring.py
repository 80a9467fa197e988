"""Score saved rollouts: reward functions get the same inputs as in training."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from itertools import chain

from agentrl.errors import AgentRLError
from agentrl.replay.base import Key, key_of
from agentrl.rewards.base import Reward
from agentrl.rewards.reward_view import parts_of_texts, solution_view
from agentrl.store import StoredRollout
from agentrl.tools.base import InfraError
from agentrl.types.messages import Message, message_text
from agentrl.types.rollout import Stop

COLUMNS = (
    *("messages", "ground_truth", "data_source", "index", "extra_info", "rewards", "turn_rewards", "tool_calls"),
    *("tool_rewards", "scored_text_sha256", "trajectories.segments", "trajectories.messages"),
)
"""Columns with the inputs of a reward, and with the saved scores, which are compared with the new ones."""

MAX_CONCURRENT = 32

NUM_CACHED_TURNS = 1024
"""Maximum number of decoded turns in the cache: about the number of turns in a row group of the Parquet file."""

ChatText = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class Scored:
    """Saved and new scores of one rollout.

    Attributes:
        saved: saved rewards by name; empty if there was no score.
        new: reward function's name -> rewards by name, including `score`. Functions that failed are missing.
        failures: reward function's name -> error, in one line.
        same_text: whether the text equals the text scored in training; None if unknown.
        from_messages: whether the text of the messages is scored, because the rollout has no tokens.
    """

    key: Key
    task: tuple[str, int]
    saved: Mapping[str, float]
    new: dict[str, dict[str, float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    same_text: bool | None = None
    from_messages: bool = False


async def score_all(
    rollouts: Iterable[StoredRollout], rewards: Mapping[str, Reward], chat_text: ChatText, include_tool_text: bool
) -> list[Scored]:
    """Score every rollout with every reward, in order. As in training, rollouts that ended in an error are skipped."""
    waiting = enumerate(stored for stored in rollouts if stored.rollout.stop is not Stop.ERROR)
    found: dict[int, Scored] = {}

    async def work() -> None:
        for place, stored in waiting:  # workers share the iterator, so that a long run is never fully in memory
            found[place] = await _scored(stored, rewards, chat_text, include_tool_text)

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(MAX_CONCURRENT):
                tasks.create_task(work())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None  # for example, a file that cannot be read
    return [found[place] for place in sorted(found)]


async def _scored(
    stored: StoredRollout, rewards: Mapping[str, Reward], chat_text: ChatText, include_tool_text: bool
) -> Scored:
    task, saved = stored.task, stored.rollout.scored_text_sha256
    solution, extra = view_of(stored, chat_text, include_tool_text)
    same_text = None if saved is None else sha256(solution.encode("utf-8", "surrogatepass")).hexdigest() == saved
    scored = Scored(
        key_of(stored),
        (task.data_source, task.index),
        stored.rollout.rewards,
        same_text=same_text,
        from_messages=not has_tokens(stored),
    )
    for number, (name, reward) in enumerate(rewards.items(), start=1):
        # copies, because a reward may change its inputs; the last reward needs no copy
        own = extra if number == len(rewards) else {key: copy(value) for key, value in extra.items()}
        extra_info = {"index": task.index, "prompt": list(task.messages), **task.extra_info, **own}
        try:
            scored.new[name] = await reward(task.data_source, solution, task.ground_truth, extra_info)
        except (AgentRLError, InfraError) as error:
            scored.failures[name] = " ".join(str(error).split())
    return scored


def cached_text(chat_text: ChatText) -> ChatText:
    """Cache `chat_text`, because late in training most turns occur in several rollouts of a group."""
    cached = lru_cache(NUM_CACHED_TURNS)(chat_text)
    return lambda token_ids: cached(tuple(token_ids))


def has_tokens(stored: StoredRollout) -> bool:
    """Whether the rollout has tokens; imported rollouts have no tokens."""
    return any(trajectory.segments for trajectory in stored.rollout.trajectories)


def view_of(
    stored: StoredRollout, chat_text: ChatText, include_tool_text: bool = False
) -> tuple[str, dict[str, object]]:
    """Return the inputs of a reward for a saved rollout, as `rewards.reward_view.solution_view` does in training.

    For a rollout without tokens, the inputs come from its messages: `completion_ids` is empty, and the text lacks the
    markup around tool calls.
    """
    solution, extra = solution_view(stored.rollout, chat_text, include_tool_text)
    if has_tokens(stored):
        return solution, extra
    histories = [_new_messages(stored, trajectory.messages) for trajectory in stored.rollout.trajectories]
    new = list(chain.from_iterable(histories))
    replies = [message for message in new if message["role"] == "assistant"]
    turns = [message_text(message) for message in replies]
    extra |= {"turn_texts": turns, "last_turn": turns[-1] if turns else "", "num_turns": len(turns)}
    extra |= parts_of_texts(replies)
    return "\n".join(map(message_text, new) if include_tool_text else turns), extra


def _new_messages(stored: StoredRollout, messages: Sequence[Message]) -> Sequence[Message]:
    """The messages after the prompt."""
    prompt = list(stored.task.messages)
    return messages[len(prompt) :] if list(messages[: len(prompt)]) == prompt else messages
