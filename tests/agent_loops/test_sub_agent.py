"""Agent loop `sub_agent`: a tool that starts agents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from loop_builders import CHAT, TASK, add, call, config, exact
from loop_builders import runner as runner_of

from agentrl.engines.base import Completion, GenerateRequest, SamplingParams
from agentrl.engines.scripted import ScriptedEngine
from agentrl.errors import ConfigError
from agentrl.rollouts.metrics import rollout_metrics
from agentrl.tools.agent_tool import agent_tools
from agentrl.tools.base import InfraError
from agentrl.types.operation import OperationKind
from agentrl.types.rollout import Group, Outcome, Rollout, Stop


class Scripted(ScriptedEngine):
    """Answers the text of a context; some requests wait until others have been answered."""

    def __init__(self, reply: Callable[[str], str], waits: Callable[[str], int] = lambda context: 0) -> None:
        super().__init__(reply, tokenizer=CHAT.tokenizer, of_text=True, stop_token_id=CHAT.stop_token_ids[0])
        self.requests: list[GenerateRequest] = []
        self._waits = waits

    async def generate(self, request: GenerateRequest) -> Completion:
        self.requests.append(replace(request, token_ids=list(request.token_ids)))
        for _ in range(self._waits(CHAT.text(request.token_ids))):
            await asyncio.sleep(0)
        return await super().generate(request)


def delegating(engine, *, task=TASK, tools=(add,), seed=0, **multi_turn) -> Rollout:
    run_config = config("sub_agent", max_parallel_calls=4, **multi_turn)
    runner = runner_of(engine, run_config, [*tools, *agent_tools(run_config.rollout)])
    return asyncio.run(runner.run(task, SamplingParams(), seed=seed))


def asked(context: str) -> str:
    """The last user message, without tool answers."""
    users = [part for part in context.split("<|im_start|>user\n")[1:] if not part.startswith("<tool_response>")]
    return users[-1].partition("<|im_end|>")[0]


def one_agent(context: str) -> str:
    if asked(context) == "add 2 and 3":
        return "It is 5" if "<tool_response>" in context else call("add", a=2, b=3)
    return "5" if "It is 5" in context else call("delegate", task="add 2 and 3")


def test_a_sub_agent_works_with_tools_and_its_answer_is_the_tools_result():
    rollout = delegating(engine := Scripted(one_agent))
    agent, main = rollout.trajectories  # the answer of the rollout is in the last one
    assert agent.messages[0] == {"role": "user", "content": "add 2 and 3"}
    assert [each["role"] for each in agent.messages] == ["user", "assistant", "tool", "assistant"]
    assert main.messages[2]["content"] == "It is 5"
    assert [(each.name, each.trajectory, each.turn) for each in rollout.tool_calls] == [
        ("add", 0, 0),
        ("delegate", 1, 0),
    ]
    assert (rollout.stop, rollout.reward) == (Stop.FINISHED, 1.0)
    assert "delegate" not in CHAT.text(agent.token_ids)
    assert len(engine.requests) == 4
    opening = next(each for each in rollout.operations if each.kind is OperationKind.MESSAGES)
    assert (opening.trajectory, *opening.parent) == (0, 1, 1)


def two_agents(context: str) -> str:
    if (task := asked(context)) in ("first", "second"):
        return f"{task} done" if "<tool_response>" in context else call("add", a=len(task), b=1)
    return "5" if "done" in context else call("delegate", task="first") + call("delegate", task="second")


def slow(task: str) -> Callable[[str], int]:
    return lambda context: 50 if asked(context) == task else 0


def test_trajectories_seeds_and_numbers_do_not_depend_on_which_agent_is_faster():
    runs = []
    for task in ("first", "second"):
        rollout = delegating(engine := Scripted(two_agents, slow(task)), seed=3)
        seeds = {CHAT.text(each.token_ids): each.sampling.seed for each in engine.requests}
        tokens = [list(each.token_ids) for each in rollout.trajectories]
        calls = [(each.name, each.arguments, each.trajectory, each.turn) for each in rollout.tool_calls]
        runs.append((seeds, tokens, calls))
        ended = [each.trajectory for each in rollout.operations if each.kind is OperationKind.MODEL_TURN]
        assert ended == ([2, 1, 1, 0, 0, 2] if task == "first" else [2, 0, 0, 1, 1, 2])
    assert runs[0] == runs[1]
    assert len(set(runs[0][0].values())) == 6


def test_seeds_of_further_trajectories_do_not_depend_on_timing_either():
    """With `thinking=strip` each agent opens further trajectories at its own pace."""

    def thinking(context: str) -> str:
        return f"<think>\n{asked(context)[:9]}\n</think>\n\n" + two_agents(context)

    runs = []
    for task in ("first", "second"):
        rollout = delegating(engine := Scripted(thinking, slow(task)), thinking="strip")
        seeds = {CHAT.text(each.token_ids): each.sampling.seed for each in engine.requests}
        runs.append((seeds, [list(each.token_ids) for each in rollout.trajectories]))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("slower", ["first", "second"])
@pytest.mark.parametrize("most", [2, 3, 4])
def test_agents_at_the_same_time_do_not_exceed_the_limit_of_calls(most, slower):
    rollout = delegating(Scripted(two_agents, slow(slower)), max_tool_calls=most)
    ran = [each for each in rollout.tool_calls if each.outcome is not Outcome.LIMIT_ERROR]
    assert len(ran) == most
    assert sum(each.name == "delegate" for each in ran) == 2  # they count from their start


def test_an_agent_has_tools_instructions_and_limits_of_its_own():
    def reply(context: str) -> str:
        return (
            call("add", a=1, b=1)
            if asked(context) == "go"
            else "5"
            if "Error" in context
            else call("delegate", task="go")
        )

    options = {"tools": ["add"], "instructions": "Be brief.", "max_assistant_turns": 2}
    rollout = delegating(Scripted(reply), tools=(add, lambda_tool()), sub_agent=options)
    agent, main = rollout.trajectories
    assert agent.messages[0] == {"role": "system", "content": "Be brief."}
    assert "shout" not in CHAT.text(agent.token_ids)
    assert "shout" in CHAT.text(main.token_ids)
    assert agent.num_turns == 2
    last = rollout.tool_calls[-1]
    assert (last.outcome, last.result) == (
        Outcome.TOOL_ERROR,
        "Error: the assistant gave no answer: max_assistant_turns",
    )
    assert rollout.stop is Stop.FINISHED


def lambda_tool():
    def shout(text: str) -> str:
        """Shout.

        Args:
            text: what.
        """
        return text.upper()

    return shout


def test_the_system_message_of_the_task_is_that_of_its_agents():
    task = replace(TASK, messages=[{"role": "system", "content": "Be kind."}, *TASK.messages])
    rollout = delegating(Scripted(one_agent), task=task)
    assert rollout.trajectories[0].messages[0] == {"role": "system", "content": "Be kind."}


def test_the_depth_limits_nested_agents():
    def reply(context: str) -> str:
        deeper = {"What is 2 + 3?": "one", "one": "two", "two": "three"}.get(asked(context))
        return call("delegate", task=deeper) if deeper and "<tool_response>" not in context else "5"

    assert len(delegating(Scripted(reply)).trajectories) == 2
    rollout = delegating(Scripted(reply), sub_agent={"depth": 2})
    assert [each.messages[0]["content"] for each in rollout.trajectories] == ["two", "one", "What is 2 + 3?"]
    refused = [each for each in rollout.tool_calls if each.outcome is Outcome.FORMAT_ERROR]
    assert [each.trajectory for each in refused] == [0]  # no such tool at the greatest depth


@pytest.mark.parametrize("arguments", [{}, {"task": 3}])
def test_wrong_arguments_start_no_agent(arguments):
    rollout = delegating(
        Scripted(lambda context: "5" if "<tool_response>" in context else call("delegate", **arguments))
    )
    assert [each.outcome for each in rollout.tool_calls] == [Outcome.FORMAT_ERROR]
    assert len(rollout.trajectories) == 1


def test_a_failure_of_infrastructure_in_an_agent_drops_the_rollout():
    def broken(a: int, b: int) -> str:
        """Add.

        Args:
            a: the first.
            b: the second.
        """
        raise InfraError("down")

    broken.__name__ = "add"
    rollout = delegating(Scripted(one_agent), tools=(broken,))
    assert rollout.infra_failed
    assert [(each.name, each.outcome) for each in rollout.tool_calls] == [
        ("add", Outcome.INFRA_ERROR),
        ("delegate", Outcome.INFRA_ERROR),
    ]


def test_text_of_a_task_never_becomes_a_control_token():
    def reply(context: str) -> str:
        return "5" if "<tool_response>" in context else call("delegate", task="a <|im_start|> b")

    agent = delegating(Scripted(lambda context: "ok" if "a <" in asked(context) else reply(context))).trajectories[0]
    assert agent.messages[0]["content"] == "a <\\|im_start|> b"


def test_other_loops_do_not_see_the_tool():
    run_config = config("sub_agent")
    runner = runner_of(engine := Scripted(lambda context: "5"), run_config, [add, *agent_tools(run_config.rollout)])
    asyncio.run(runner.run(replace(TASK, agent_name="tool_agent"), SamplingParams(), seed=0))
    assert "delegate" not in CHAT.text(engine.requests[0].token_ids)


def test_a_row_cannot_ask_for_sub_agents_alone():
    runner = runner_of(Scripted(one_agent), config("tool_agent"))
    with pytest.raises(ConfigError, match="default_agent_loop=sub_agent"):
        asyncio.run(runner.run(replace(TASK, agent_name="sub_agent"), SamplingParams(), seed=0))


def test_metrics():
    rollout = delegating(Scripted(two_agents))
    metrics = rollout_metrics([Group(TASK, [rollout])])
    lengths = [each.num_response_tokens for each in rollout.trajectories[:2]]
    assert (metrics["sub_agents/mean"], metrics["sub_agents/response_length"]) == (2, sum(lengths) / 2)
    assert "compaction/mean" not in metrics


def test_the_reward_reads_the_main_conversation():
    seen = {}

    async def reward(data_source, solution_str, ground_truth, extra_info):
        seen.update(extra_info)
        return await exact(data_source, solution_str, ground_truth, extra_info)

    run_config = config("sub_agent", max_parallel_calls=4)
    runner = runner_of(Scripted(one_agent), run_config, [add, *agent_tools(run_config.rollout)], reward=reward)
    asyncio.run(runner.run(TASK, SamplingParams(), seed=0))
    assert (seen["last_turn"], seen["conversation"][0]["content"]) == ("5", "What is 2 + 3?")
