"""ReAct: tool calls and answers are plain text, independent of the chat template's tool support."""

from __future__ import annotations

from dataclasses import replace

from loop_builders import TASK, ListEngine, add, config, roll, texts

from agentrl.agent_loops.react import instructions
from agentrl.tools.function import as_tool
from agentrl.types.rollout import Outcome, Stop
from agentrl.types.trajectory import Author

ACTION = 'Thought: I add.\nAction: add\nAction Input: {"a": 2, "b": 3}\nObservation:'


def test_an_action_is_run_and_observed():
    engine = ListEngine(ACTION + " 6, I guess", "Thought: done\nFinal Answer: 5")
    rollout = roll(engine, config("react_agent"))
    assert texts(rollout)[1][1] == ACTION  # sampling ended at the stop string
    assert texts(rollout)[2] == (
        "tool",
        "<|im_end|>\n<|im_start|>user\nObservation: 5<|im_end|>\n<|im_start|>assistant\n",
    )
    assert [segment.author for segment in rollout.trajectories[0].segments][2] is Author.TOOL
    assert texts(rollout)[3][1] == "Thought: done\nFinal Answer: 5<|im_end|>"
    assert [(each.name, each.result, each.outcome) for each in rollout.tool_calls] == [("add", "5", Outcome.OK)]
    assert rollout.stop is Stop.FINISHED
    assert engine.requests[0].sampling.stop == ("Observation:",)


def test_tools_are_listed_in_the_system_message():
    schemas = [as_tool(add).schema]
    told = instructions(schemas)
    assert "add: Add two numbers." in told
    assert '"integer"' in told
    prompt = texts(roll(ListEngine("Final Answer: 5"), config("react")))[0][1]
    assert f"<|im_start|>system\n{told}<|im_end|>" in prompt
    assert "# Tools" not in prompt  # the template's native tool section

    task = replace(TASK, messages=[{"role": "system", "content": "Be brief."}, *TASK.messages])
    prompt = texts(roll(ListEngine("Final Answer: 5"), config("react"), task))[0][1]
    assert f"<|im_start|>system\n{told}\n\nBe brief.<|im_end|>\n<|im_start|>user\nWhat" in prompt


def test_invalid_action_gets_an_observation():
    rollout = roll(ListEngine("Action: add\nAction Input: two\nObservation:", "Final Answer: 5"), config("react"))
    assert rollout.tool_calls[0].outcome is Outcome.FORMAT_ERROR
    assert "Observation: Error: Action Input: must be a JSON object" in texts(rollout)[2][1]
    assert rollout.stop is Stop.FINISHED


def test_several_actions_are_observed_in_one_message():
    two = 'Action: add\nAction Input: {"a": 2, "b": 3}\nAction: add\nAction Input: {"a": 1, "b": 1}\nObservation:'
    rollout = roll(ListEngine(two, "Final Answer: 5"), config("react", max_parallel_calls=2))
    assert "user\nObservation: 5\nObservation: 2<|im_end|>" in texts(rollout)[2][1]
    assert [each.num_tokens for each in rollout.tool_calls] == [len(rollout.trajectories[0].segments[2]), 0]
