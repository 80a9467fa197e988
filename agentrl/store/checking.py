"""Validation of rows read from a file, which another program may have written."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.store.stored import StoredRollout


def check_row(stored: StoredRollout) -> None:
    """Check that the values of one row have the shapes that readers rely on.

    Raises:
        ValueError: a value is invalid; the message names step, rollout and column.
    """
    for column in _wrong(stored):
        place = f"step {stored.step}, rollout {stored.number} of '{stored.task.uid:.80}'"
        raise ValueError(f"{place}: column '{column}' has an invalid value")


def _wrong(stored: StoredRollout) -> Iterator[str]:
    task, rollout = stored.task, stored.rollout
    if rollout.stop is None:
        yield "stop"
    for name in ("step", "number"):
        if getattr(stored, name) < 0:
            yield "rollout" if name == "number" else name
    for name in ("tools_kwargs", "interaction_kwargs", "extra_info"):
        if not isinstance(getattr(task, name), dict):
            yield name
    if not _are_messages(task.messages):
        yield "messages"
    for trajectory, advantages in zip(rollout.trajectories, stored.advantages, strict=True):
        if not _are_messages(trajectory.messages):
            yield "trajectories.messages"
        num_tokens = sum(len(segment.token_ids) for segment in trajectory.segments)
        if trajectory.segments and advantages is not None and len(advantages) != num_tokens:
            yield "trajectories.advantages"
        for segment in trajectory.segments:
            if segment.logprobs is not None and len(segment.logprobs) != len(segment.token_ids):
                yield "trajectories.segments.logprobs"
    for reward in rollout.turn_rewards:
        if rollout.trajectories and not 0 <= reward.trajectory < len(rollout.trajectories):
            yield "turn_rewards.trajectory"


def _are_messages(messages: object) -> bool:
    if not isinstance(messages, list | tuple):
        return False
    return all(isinstance(each, dict) and isinstance(each.get("role"), str) for each in messages)
