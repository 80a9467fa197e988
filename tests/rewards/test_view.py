from __future__ import annotations

from agentrl.rewards.reward_view import solution_view
from agentrl.types.rollout import Outcome, Rollout, Stop, ToolCall, TurnReward
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan


def segment(author, text):
    ids = list(text.encode())
    if author is Author.MODEL:
        return Segment(author, ids, [0.0] * len(ids), [VersionSpan(0, len(ids))])
    return Segment(author, ids)


def text(token_ids):
    return bytes(token_ids).decode()


def rollout(*conversations):
    trajectories = [Trajectory([segment(*pair) for pair in pairs]) for pairs in conversations]
    return Rollout(
        trajectories,
        Stop.FINISHED,
        turn_rewards=[TurnReward(0, 1, "interaction", 0.5)],
        tool_calls=[ToolCall("calculator", "{}", "42", Outcome.OK, reward=0.1)],
        tool_rewards={"calculator": 2.0},
    )


WITH_TOOL = [
    (Author.PROMPT, "What is 6*7? #### 1"),
    (Author.MODEL, "call"),
    (Author.TOOL, "<tool>42</tool>"),
    (Author.MODEL, "It is 42."),
]


def test_the_reward_sees_what_the_model_wrote():
    solution, extra = solution_view(rollout(WITH_TOOL), text)
    assert solution == "call\nIt is 42."
    assert extra == {
        "turn_texts": ["call", "It is 42."],
        "last_turn": "It is 42.",
        "turn_thoughts": ["", ""],
        "turn_contents": ["call", "It is 42."],
        "completion_ids": list(b"call<tool>42</tool>It is 42."),
        "response_lengths": [28],
        "conversation": [],
        "token_ids": list(b"What is 6*7? #### 1call<tool>42</tool>It is 42."),
        "num_turns": 2,
        "num_tool_calls": 1,
        "tool_outcomes": ["ok"],
        "tool_text": "42",
        "tool_rewards": [0.1],
        "rollout_reward_scores": {"calculator": 2.0},
        "turn_scores": [0.5],
        "stop": "finished",
    }


def test_tool_text_on_demand():
    assert solution_view(rollout(WITH_TOOL), text, include_tool_text=True)[0] == "call<tool>42</tool>It is 42."


def test_several_trajectories_are_joined_and_copies_do_not_count_twice():
    rewritten = [(Author.PROMPT, "summary: call"), (Author.MODEL, "done")]
    solution, extra = solution_view(rollout(WITH_TOOL, rewritten), text)
    assert solution == "call\nIt is 42.\ndone"
    assert extra["last_turn"] == "done"
    assert extra["completion_ids"] == list(b"call<tool>42</tool>It is 42.done")


def test_rollout_without_model_text_is_scored():
    solution, extra = solution_view(rollout([(Author.PROMPT, "hello")]), text, include_tool_text=True)
    assert (solution, extra["last_turn"], extra["num_turns"]) == ("", "", 0)


def test_dialogue_may_start_with_the_model():
    assert solution_view(rollout([(Author.MODEL, "hi")]), text, include_tool_text=True)[0] == "hi"
