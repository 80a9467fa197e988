"""The example environment with a scripted model, and the classes of the page."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

from agentrl.chat.base import ParsedCall
from agentrl.chat.format import ChatFormat
from agentrl.config.data import DataConfig
from agentrl.config.reward import RewardConfig
from agentrl.config.run import RunConfig
from agentrl.data.tasks import load_tasks
from agentrl.engines.base import SamplingParams
from agentrl.engines.scripted import ScriptedEngine
from agentrl.rewards.loading import load_reward
from agentrl.rollouts.row_check import RowCheck
from agentrl.rollouts.runner import RolloutRunner
from agentrl.tools.environments.bound import Environment
from agentrl.tools.environments.spec import read_environment
from agentrl.tools.toolbox import Toolbox, load_toolbox
from agentrl.types.rollout import Stop
from agentrl.types.task import Task

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/environment"


def called(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def ship(task_folder, *replies):
    """The rollout of the first order, "Take 2 lamp, then ship."."""
    from transformers import AutoTokenizer

    config = RunConfig.model_validate(
        {
            "model": {"path": "none"},
            "data": {"max_prompt_length": 200, "max_response_length": 300},
            "rollout": {"multi_turn": {"environment": f"{EXAMPLE}/warehouse.py:Warehouse", "max_assistant_turns": 5}},
        }
    )
    tokenizer = AutoTokenizer.from_pretrained(task_folder / "model")
    chat = ChatFormat(tokenizer)
    engine = ScriptedEngine(replies, tokenizer=tokenizer, stop_token_id=chat.stop_token_ids[0])
    task = load_tasks([str(EXAMPLE / "orders.jsonl")], DataConfig())[0]

    async def main():
        toolbox = load_toolbox(config.rollout.multi_turn)
        RowCheck(chat, toolbox, config, None).prompt_length(task)
        runner = RolloutRunner(engine, chat, toolbox, load_reward(RewardConfig(name="tool_rewards")), config)
        rollout = await runner.run(task, SamplingParams(), seed=0)
        await toolbox.close()
        return rollout

    return asyncio.run(main())


def test_the_ordered_items_earn_the_whole_reward(task_folder):
    rollout = ship(task_folder, called("look"), called("take", item="lamp", count=2), called("ship"), "never sampled")
    assert (rollout.stop, rollout.reward) == (Stop.ENVIRONMENT_DONE, 1.0)
    assert rollout.tool_calls[1].result == "Box: 2 lamp"


def test_a_wrong_box_earns_less(task_folder):
    rollout = ship(task_folder, called("take", item="lamp", count=9), called("take", item="lamp", count=1), "Done.")
    assert (rollout.stop, rollout.reward) == (Stop.FINISHED, 0.25)
    assert rollout.tool_calls[0].result.startswith("Error: there are only ")


def page_classes() -> dict[str, type]:
    names: dict[str, type] = {"__name__": "page"}
    page = (ROOT / "docs/environments.md").read_text(encoding="utf-8")
    for code in re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE):
        exec(compile(code, "environments.md", "exec"), names)
    return names


def test_the_classes_of_the_page_are_environments():
    names = page_classes()

    async def main():
        box = Toolbox([Environment(read_environment(names["Counter"], "Counter"))])
        row = Task([{"role": "user", "content": "Count."}], extra_info={"target": 5})
        box.check(row)
        async with box.session(row) as session:
            observation = await session.start()
            answers = [(await session.call(ParsedCall("add", f'{{"number": {n}}}'))).text for n in (2, 3)]
        await box.close()
        return observation, answers, session.rewards

    assert asyncio.run(main()) == (" The target is 5.", ["2", "5"], {"Counter": 1.0})
    dice = read_environment(names["Dice"], "Dice")
    assert (dice.deterministic, [*dice.tools]) == (True, ["roll"])
