"""Small steps of rollouts for store tests."""

from __future__ import annotations

from agentrl.types.rollout import Group, Outcome, Rollout, Stop, ToolCall
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan


def trajectory(*model_ids: int, version: int = 0) -> Trajectory:
    """A prompt, then the model's turn, if given."""
    said = [Segment(Author.MODEL, model_ids, [-0.5] * len(model_ids), [VersionSpan(version, len(model_ids))])]
    return Trajectory(
        [Segment(Author.PROMPT, [1, 2]), *(said if model_ids else [])], [{"role": "user", "content": "?"}]
    )


def rollout(
    number: int, reward: float = 0.0, stop: Stop = Stop.FINISHED, calls: tuple[tuple[str, Outcome], ...] = ()
) -> Rollout:
    tool_calls = [ToolCall(name, "{}", "", outcome) for name, outcome in calls]
    return Rollout([trajectory(3, 4 + number)], stop, {"score": reward}, tool_calls=tool_calls, seed=2**64 - 1 - number)


def group(uid: str, *rollouts: Rollout, data_source: str = "sums") -> Group:
    return Group(Task([{"role": "user", "content": uid}], data_source=data_source, uid=uid), list(rollouts))
