"""Code in the documentation runs, and its links exist."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentrl.agent_loops import agent_loops
from agentrl.algos import estimate_advantages, policy_loss
from agentrl.chat.base import ParsedCall
from agentrl.config.data import CustomDatasetConfig, DataConfig
from agentrl.config.reward import ManagerModuleConfig, RewardConfig, RewardManagerConfig
from agentrl.config.validate import config_fields
from agentrl.data.tasks import load_tasks
from agentrl.rewards.base import close_reward
from agentrl.rewards.loading import load_reward
from agentrl.tools.function import TOOLS
from agentrl.tools.toolbox import Toolbox
from agentrl.types.messages import FunctionSchema, ToolSchema
from agentrl.types.rollout import Outcome
from agentrl.types.task import Task

ROOT = Path(__file__).parents[2]
PAGES = (
    *("algorithms", "async", "data", "evaluate", "extending", "glossary", "gpu", "index", "multimodal", "off-policy"),
    *("environments", "gateway", "mcp", "replay", "rewards", "search", "security", "sglang", "simulated-users", "view"),
    "other_environments",
)
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / f"docs/{page}.md" for page in PAGES)]


def blocks(path, language):
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_python_runs_and_json_parses(path):
    for code in blocks(path, "python"):
        exec(compile(code, str(path), "exec"), {"__name__": "document"})
    for text in blocks(path, "json"):
        assert json.loads(text)


@pytest.mark.slow
def test_definitions_in_the_readme_are_registered():
    for code in blocks(ROOT / "README.md", "python"):
        exec(compile(code, "README.md", "exec"), {"__name__": "document"})
    assert "search" in TOOLS.names()
    assert "my_agent" in agent_loops.names()


def test_definitions_in_docs_algorithms_work():
    for code in blocks(ROOT / "docs/algorithms.md", "python"):
        exec(compile(code, "algorithms.md", "exec"), {"__name__": "document"})
    mask, rewards = torch.ones(2, 2), torch.tensor([[0.0, 1.0], [0.0, 3.0]])
    advantages, _ = estimate_advantages("raw", rewards, mask, ["task", "task"], scale=2.0)
    assert advantages.tolist() == [[2, 2], [6, 6]]
    loss, _ = policy_loss("capped", mask, mask - 5, advantages, mask, cap=3.0)
    assert loss.item() == -3 * 4


def test_definitions_in_docs_extending_work(tmp_path):
    for number, code in enumerate(blocks(ROOT / "docs/extending.md", "python")):
        (tmp_path / f"part{number}.py").write_text(code)
    (parts,) = [file for file in tmp_path.glob("*.py") if "def surplus" in file.read_text()]
    mask, rewards = torch.ones(2, 2), torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    advantages, _ = estimate_advantages(f"{parts}:surplus", rewards, mask, ["task", "task"], threshold=0.25)
    assert advantages.tolist() == [[0.75, 0.75], [-0.25, -0.25]]
    loss, _ = policy_loss(f"{parts}:unclipped", mask, mask - 5, advantages, mask, cap=2.0)
    assert loss.item() == -2 * (0.75 - 0.25) / 2
    (rows,) = [file for file in tmp_path.glob("*.py") if "class Sums" in file.read_text()]
    tasks = load_tasks(["any"], DataConfig(custom_cls=CustomDatasetConfig(path=rows, name="Sums")))
    assert (len(tasks), tasks[3].ground_truth) == (64, "4")
    (manager,) = [file for file in tmp_path.glob("*.py") if "class Halving" in file.read_text()]
    own = RewardManagerConfig(source="importlib", name="Halving", module=ManagerModuleConfig(path=str(manager)))
    reward = load_reward(RewardConfig(name="exact_match", reward_manager=own))
    rewards = asyncio.run(reward("sums", "4", "4", {"last_turn": "4", "num_turns": 2}))
    assert rewards["score"] == 0.5
    close_reward(reward)


def test_the_two_tools_of_the_page_share_what_a_rollout_took():
    (code,) = [code for code in blocks(ROOT / "docs/extending.md", "python") if "class Take" in code]
    exec(compile(code, "extending.md", "exec"), page := {"__name__": "document"})
    item = FunctionSchema(name="take", parameters={"type": "object", "properties": {"item": {"type": "string"}}})
    count = FunctionSchema(name="count", parameters={"type": "object", "properties": {}})
    tools = [page["Take"]({}, ToolSchema(function=item)), page["Count"]({}, ToolSchema(function=count))]

    async def rollout(box):
        async with box.session(Task([])) as session:
            for _ in range(2):
                await session.call(ParsedCall("take", '{"item": "nut"}'))
            return (await session.call(ParsedCall("count", "{}"))).text

    async def main():
        box = Toolbox(tools)
        counts = await asyncio.gather(rollout(box), rollout(box))
        await box.close()
        return counts

    assert asyncio.run(main()) == ["2", "2"]
    assert page["SHELVES"] == {}


def test_the_tool_of_the_page_fails_in_both_ways(monkeypatch):
    (code,) = [code for code in blocks(ROOT / "docs/tools.md", "python") if "def price" in code]
    exec(compile(code, "tools.md", "exec"), page := {"__name__": "document"})

    async def outcomes():
        box = Toolbox([replace(page["price"].__agentrl_tool__, retries=0)])
        async with box.session(Task([])) as session:
            found = [await session.call(ParsedCall("price", json.dumps({"item": item}))) for item in ("apple", "nut")]
            page["ask_service"] = raising
            found.append(await session.call(ParsedCall("price", '{"item": "apple"}')))
        await box.close()
        return [(each.outcome, each.text) for each in found]

    def raising(item):
        raise ConnectionError

    assert asyncio.run(outcomes()) == [
        (Outcome.OK, "3"),
        (Outcome.TOOL_ERROR, "Error: there is no item 'nut'"),
        (Outcome.INFRA_ERROR, "Error: InfraError: the price service does not answer"),
    ]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_are_pointed_at_exist(path):
    text = path.read_text()
    targets = re.findall(r"\]\(([^)#:]+)\)", text)
    assert [target for target in targets if not (path.parent / target).exists()] == []
    named = re.findall(r"`((?:agentrl|examples|configs|tests|docs)/[\w./]+)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_configuration_keys_that_are_named_exist(path):
    keys = {key for key, _ in config_fields()}
    sections = {".".join(key.split(".")[:depth]) for key in keys for depth in range(1, 4)}
    pattern = r"(?<![\w/.])((?:model|data|rollout|actor|algorithm|reward|trainer)\.[a-z_.]*[a-z])(?==|`)"
    # below these keys, each component has its own names
    free = tuple(f"{key}." for key in keys if key.endswith("options"))
    named = [name for name in re.findall(pattern, path.read_text()) if not name.startswith(free)]
    assert [name for name in named if name not in keys | sections] == []
