"""The tool agent: the tokens of a rollout, their authors, and the effect of each limit."""

from __future__ import annotations

import asyncio
import json

import pytest
from loop_builders import END, TASK, ListEngine, add, call, config, ids, roll, texts

from agentrl.engines.base import SamplingParams
from agentrl.interactions.base import BaseInteraction
from agentrl.tools.base import InfraError
from agentrl.types.rollout import Outcome, Stop, TurnReward
from agentrl.types.trajectory import Author

SUM = call("add", a=2, b=3)


def outcomes(rollout):
    return [each.outcome for each in rollout.tool_calls]


def test_a_call_is_run_and_answered():
    engine = ListEngine(SUM, "5")
    rollout = roll(engine, config())
    assert texts(rollout)[1:] == [
        ("model", SUM + "<|im_end|>"),
        ("tool", "\n<|im_start|>user\n<tool_response>\n5\n</tool_response><|im_end|>\n<|im_start|>assistant\n"),
        ("model", "5<|im_end|>"),
    ]
    assert rollout.stop is Stop.FINISHED
    assert rollout.error is None
    assert rollout.reward == 1.0
    assert rollout.duration_s > 0


def test_the_model_reads_exactly_what_it_and_the_tools_wrote():
    engine = ListEngine(SUM, SUM, "5")
    trajectory = roll(engine, config()).trajectories[0]
    starts = [0]
    for segment in trajectory.segments:
        starts.append(starts[-1] + len(segment))
    model_starts = [start for start, segment in zip(starts, trajectory.segments, strict=False) if segment.logprobs]
    assert [request.token_ids for request in engine.requests] == [
        trajectory.token_ids[:start] for start in model_starts
    ]
    assert trajectory.logprobs[model_starts[0]] == -0.5
    assert trajectory.segments[1].policy_versions[0].version == 7


def test_messages_hold_the_calls_and_their_answers():
    messages = roll(ListEngine(SUM, "5"), config()).trajectories[0].messages
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    (made,) = messages[1]["tool_calls"]
    assert made["function"] == {"name": "add", "arguments": {"a": 2, "b": 3}}
    assert messages[2] == {"role": "tool", "name": "add", "tool_call_id": made["id"], "content": "5"}
    assert len(made["id"]) == 9


def test_call_is_recorded():
    (made,) = roll(ListEngine(SUM, "5"), config()).tool_calls
    assert (made.name, json.loads(made.arguments), made.result, made.outcome) == ("add", {"a": 2, "b": 3}, "5", "ok")
    tool_text = "\n<|im_start|>user\n<tool_response>\n5\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    assert made.num_tokens == len(ids(tool_text))
    assert (made.turn, made.trajectory) == (0, 0)


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("<tool_call>\n{broken\n</tool_call>", "JSON"),
        (call("subtract", a=1), "there is no tool 'subtract'"),
        (call("add", a="x", b=3), "a"),
        (call("add", a=2), "b"),
    ],
)
def test_invalid_call_is_answered_and_the_rollout_continues(reply, problem):
    rollout = roll(ListEngine(reply, SUM, "5"), config())
    assert outcomes(rollout) == [Outcome.FORMAT_ERROR, Outcome.OK]
    assert problem in rollout.tool_calls[0].result
    assert rollout.tool_calls[0].result in texts(rollout)[2][1]
    assert rollout.reward == 1.0


def test_calls_of_one_turn_run_side_by_side_and_are_answered_in_their_order():
    started = []
    both = asyncio.Event()

    async def wait(name: str) -> str:
        """Wait for the other.

        Args:
            name: who.
        """
        started.append(name)
        both.set() if len(started) == 2 else await both.wait()
        return f"{name} is done"

    reply = call("wait", name="first") + "\n" + call("wait", name="second")
    rollout = roll(ListEngine(reply, "ok"), config(max_parallel_calls=2), tools=[wait])
    assert [each.result for each in rollout.tool_calls] == ["first is done", "second is done"]
    tool_text = texts(rollout)[2][1]
    assert 0 < tool_text.index("first is done") < tool_text.index("second is done")
    assert sum(each.num_tokens for each in rollout.tool_calls) == len(rollout.trajectories[0].segments[2])
    assert all(each.num_tokens for each in rollout.tool_calls)


def test_calls_beyond_the_parallel_limit_are_answered_with_an_error():
    rollout = roll(ListEngine(SUM + SUM, "5"), config(max_parallel_calls=1))
    assert outcomes(rollout) == [Outcome.OK, Outcome.LIMIT_ERROR]
    assert "limited to 1" in texts(rollout)[2][1]
    assert rollout.stop is Stop.FINISHED


def test_model_may_answer_after_the_last_allowed_call():
    rollout = roll(ListEngine(SUM, SUM, "5"), config(max_tool_calls=1))
    assert outcomes(rollout) == [Outcome.OK, Outcome.LIMIT_ERROR]
    assert "no tool calls are left" in texts(rollout)[4][1]
    assert (rollout.stop, rollout.reward) == (Stop.FINISHED, 1.0)


def test_model_that_keeps_calling_tools_is_stopped():
    rollout = roll(ListEngine(SUM), config(max_tool_calls=1))
    assert rollout.stop is Stop.MAX_TOOL_CALLS
    assert outcomes(rollout) == [Outcome.OK, Outcome.LIMIT_ERROR, Outcome.LIMIT_ERROR]
    assert rollout.trajectories[0].segments[-1].author is Author.MODEL


def test_calls_of_the_last_turn_are_recorded_and_not_run():
    run = []

    def note(text: str) -> str:
        """Note.

        Args:
            text: what.
        """
        run.append(text)
        return "noted"

    rollout = roll(ListEngine(call("note", text="x")), config(max_assistant_turns=2), tools=[note])
    assert rollout.stop is Stop.MAX_ASSISTANT_TURNS
    assert outcomes(rollout) == [Outcome.OK, Outcome.LIMIT_ERROR]
    assert run == ["x"]
    assert rollout.trajectories[0].num_turns == 2
    assert rollout.trajectories[0].messages[-1]["tool_calls"][0]["function"]["name"] == "note"


def test_turn_is_truncated_at_its_own_limit():
    rollout = roll(ListEngine(SUM), config(max_turn_tokens=4))
    assert rollout.stop is Stop.MAX_TURN_TOKENS
    assert rollout.tool_calls == []
    assert rollout.trajectories[0].num_response_tokens == 4


def test_turn_is_truncated_at_the_limit_of_the_caller():
    assert roll(ListEngine(SUM), config(), sampling=SamplingParams(max_new_tokens=4)).stop is Stop.MAX_TURN_TOKENS


def test_turn_is_truncated_at_the_response_limit():
    rollout = roll(ListEngine(SUM), config(max_response_length=4))
    assert rollout.stop is Stop.MAX_RESPONSE_TOKENS
    assert rollout.trajectories[0].num_response_tokens == 4


@pytest.mark.parametrize("spare", [-5, 0, 1])
def test_tool_text_never_takes_the_last_token(spare):
    """The response is the call plus the tool's answer. The answer is appended only if a token is left for a reply."""
    whole = roll(ListEngine(SUM, "5"), config()).trajectories[0]
    limit = sum(len(segment) for segment in whole.segments[1:3]) + spare
    rollout = roll(ListEngine(SUM, "5"), config(max_response_length=limit))
    assert rollout.stop is Stop.MAX_RESPONSE_TOKENS
    assert rollout.trajectories[0].num_response_tokens <= limit
    assert len(rollout.trajectories[0].segments) == (4 if spare > 0 else 2)
    assert outcomes(rollout) == [Outcome.OK]
    assert [message["role"] for message in rollout.trajectories[0].messages][-1] == "assistant"


def test_a_long_answer_is_shortened():
    def count() -> str:
        """Count."""
        return "".join(map(str, range(50)))

    options = {"max_tool_response_length": 6, "tool_response_truncate_side": "left"}
    rollout = roll(ListEngine(call("count"), "5"), config(**options), tools=[count])
    assert rollout.tool_calls[0].result == "...(truncated)...474849"


def test_infra_error_of_a_tool_ends_the_rollout_as_infra_failed():
    def broken(a: int) -> str:
        """Break.

        Args:
            a: a number.
        """
        raise InfraError("the service is down")

    rollout = roll(ListEngine(call("broken", a=1), "5"), config(), tools=[broken])
    assert (rollout.stop, rollout.infra_failed, rollout.valid) == (Stop.ERROR, True, False)
    assert "the service is down" in rollout.error
    assert outcomes(rollout) == [Outcome.INFRA_ERROR]
    assert rollout.trajectories[0].num_turns == 1


def test_without_tools_a_call_is_only_text():
    rollout = roll(ListEngine(SUM), config(), tools=[])
    assert (rollout.stop, rollout.tool_calls) == (Stop.FINISHED, [])
    assert rollout.trajectories[0].messages[-1]["content"] == SUM


class Teacher(BaseInteraction):
    async def generate_response(self, instance_id, messages, **kwargs):
        right = messages[-1]["content"] == "5"
        return right, "Try again.", float(right), {}

    async def calculate_score(self, instance_id, **kwargs):
        return 0.75


def talk(*replies, **limits):
    return roll(ListEngine(*replies), config(**limits), interactions={"teacher": Teacher({})})


def test_a_simulated_user_answers_until_content():
    rollout = talk("4", SUM, "5")
    assert texts(rollout)[2] == (
        "user",
        "\n<|im_start|>user\nTry again.<|im_end|>\n<|im_start|>assistant\n",
    )
    assert rollout.stop is Stop.INTERACTION_ENDED
    assert rollout.turn_rewards == [TurnReward(0, 1, "interaction", 0.0), TurnReward(0, 5, "interaction", 1.0)]
    assert rollout.tool_rewards == {"interaction": 0.75}


def test_the_users_answers_are_limited():
    rollout = talk("4", max_user_turns=1)
    assert rollout.stop is Stop.MAX_USER_TURNS
    assert [author for author, _ in texts(rollout)] == ["prompt", "model", "user", "model"]


def test_the_user_judges_the_last_turn_allowed():
    rollout = talk("4", max_assistant_turns=1)
    assert rollout.stop is Stop.MAX_ASSISTANT_TURNS
    assert rollout.turn_rewards == [TurnReward(0, 1, "interaction", 0.0)]
    assert talk("5", max_assistant_turns=1).stop is Stop.INTERACTION_ENDED


def test_single_turn_agent_offers_no_tools():
    engine = ListEngine(SUM)
    rollout = roll(engine, config("single_turn"))
    assert (rollout.stop, rollout.trajectories[0].num_turns, rollout.tool_calls) == (Stop.FINISHED, 1, [])
    assert "# Tools" not in texts(rollout)[0][1]
    assert engine.requests[0].sampling.stop_token_ids == (END,)
    assert engine.requests[0].sampling.max_new_tokens == 500


def test_every_turn_has_a_seed_and_a_rollout_a_session():
    engines = [ListEngine(SUM, "5") for _ in range(3)]
    for engine, seed in zip(engines, (1, 1, 2), strict=True):
        roll(engine, config(), seed=seed)
    seeds = [[request.sampling.seed for request in engine.requests] for engine in engines]
    assert seeds[0] == seeds[1]
    assert len({*seeds[0], *seeds[2]}) == 4
    sessions = [{request.session for request in engine.requests} for engine in engines]
    assert [len(names) for names in sessions] == [1, 1, 1]
    assert len(set.union(*sessions)) == 3
    assert [engine.released for engine in engines] == [list(names) for names in sessions]


def test_task_is_not_modified():
    before = json.dumps(TASK.messages)
    roll(ListEngine(SUM, "5"), config())
    assert json.dumps(TASK.messages) == before
    assert add(2, 3) == "5"
