"""What a reward is shown of a rollout: what the model wrote, and the rest apart from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentrl.attempt import Rollout
from agentrl.trajectory import Author, Segment, Trajectory


def solution_view(
    rollout: Rollout, chat_text: Callable[[Sequence[int]], str], include_tool_text: bool = False
) -> tuple[str, dict[str, object]]:
    """(solution_str, what is added to the row's extra_info).

    The solution is the text of the model's turns, joined by newlines; what tools and users said is in it only with
    `include_tool_text`, since a reward that looks for the answer anywhere would find it there. Added are:

        turn_texts, last_turn      the text of each model turn; of the last one
        completion_ids             tokens of all turns, what tools and users said among them
        response_lengths           how many those are, of each trajectory
        conversation, token_ids    messages and tokens of the whole last trajectory, its prompt too
        num_turns                  model turns
        num_tool_calls, tool_outcomes, tool_text, tool_rewards
                                   calls, and for each of them outcome and reward; the answers, joined
        rollout_reward_scores      tool name -> its reward for the whole rollout
        turn_scores                the simulated user's scores
        stop                       why the rollout ended

    Args:
        chat_text: the text of some tokens, as `ChatFormat.text` gives it.
    """
    turns = [chat_text(segment.token_ids) for segment in _segments(rollout) if segment.author.trained]
    calls = rollout.tool_calls
    extra: dict[str, object] = {
        "turn_texts": turns,
        "last_turn": turns[-1] if turns else "",
        "completion_ids": [token_id for trajectory in rollout.trajectories for token_id in _response(trajectory)],
        "response_lengths": [trajectory.num_response_tokens for trajectory in rollout.trajectories],
        "conversation": list(rollout.trajectories[-1].messages) if rollout.trajectories else [],
        "token_ids": list(rollout.trajectories[-1].token_ids) if rollout.trajectories else [],
        "num_turns": len(turns),
        "num_tool_calls": len(calls),
        "tool_outcomes": [call.outcome.value for call in calls],
        "tool_text": "\n".join(call.result for call in calls),
        "tool_rewards": [call.reward for call in calls],
        "rollout_reward_scores": dict(rollout.tool_rewards),
        "turn_scores": [reward.value for reward in rollout.turn_rewards],
        "stop": rollout.stop.value,
    }
    if include_tool_text:
        turns = [chat_text(_response(trajectory)) for trajectory in rollout.trajectories]
    return "\n".join(turns), extra


def _segments(rollout: Rollout) -> list[Segment]:
    return [segment for trajectory in rollout.trajectories for segment in trajectory.segments]


def _response(trajectory: Trajectory) -> list[int]:
    """Everything after the first prompt."""
    prompt = len(trajectory.token_ids) - trajectory.num_response_tokens
    first = trajectory.segments[0].author if trajectory.segments else Author.PROMPT
    return list(trajectory.token_ids[prompt if first is Author.PROMPT else 0 :])
