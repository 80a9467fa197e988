"""The page of harnesses: its tables, its files, and its example."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
import yaml

from agentrl.cli.main import main
from agentrl.config.run import RunConfig
from agentrl.engines.base import SamplingParams
from agentrl.engines.scripted import ScriptedEngine
from agentrl.harness.function import load_function
from agentrl.harness.placeholders import NAMES
from agentrl.harness.settings import HarnessSettings, harness_names, read_harness
from agentrl.rollouts.runner import RolloutRunner
from agentrl.sandboxes.local.settings import LocalSandbox
from agentrl.store import TrajectoryStore
from agentrl.tools.toolbox import load_toolbox
from agentrl.types.rollout import Stop
from agentrl.types.task import Task

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/harnesses.md").read_text()
EXAMPLE = ROOT / "examples/harness/calculator_agent.yaml"


def column(header: str) -> list[str]:
    """The names in the first column of the table whose header starts with the text."""
    table = PAGE[PAGE.index(f"| {header} |") :].partition("\n\n")[0]
    return [name for row in table.splitlines()[2:] for name in re.findall(r"`([^`]+)`", row.split("|")[1])]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)


def test_the_tables_are_complete():
    assert sorted(column("name")) == harness_names()
    assert sorted(column("key")) == sorted(HarnessSettings.model_fields)
    assert {name.strip("{}") for name in column("placeholder")} == {*NAMES, "row.COLUMN"}


def test_the_files_of_the_page_are_valid(tmp_path):
    first, function, in_task, tools, sandbox = blocks("yaml")
    assert first == EXAMPLE.read_text().partition("\n")[2]
    HarnessSettings.model_validate(yaml.safe_load(sandbox))
    (tmp_path / "task.yaml").write_text(in_task)
    assert read_harness(str(tmp_path / "task.yaml")).settings.in_task
    (entry,) = yaml.safe_load(tools)["tools"]
    assert LocalSandbox.model_validate(entry["sandbox"]).readonly == (Path("/opt/agent"),)
    (tmp_path / "own.yaml").write_text(function)
    code = blocks("python")[0]
    (tmp_path / "my_harness.py").write_text(code)
    assert load_function(read_harness(str(tmp_path / "own.yaml"))).__name__ == "run"


def rolled(task_folder: Path, **rollout: object):
    """The rollout of one task with a scripted model, which calls the calculator twice."""
    from transformers import AutoTokenizer

    from agentrl.chat.format import ChatFormat

    config = RunConfig.model_validate(
        {"model": {"path": "none"}, "data": {"max_response_length": 400}, "rollout": rollout}
    )
    call = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "%s"}}\n</tool_call>'
    replies = [call % "37*41", call % "1517+19", "The answer is 1536"]
    tokenizer = AutoTokenizer.from_pretrained(task_folder / "model")
    toolbox = load_toolbox(config.rollout.multi_turn)
    engine = ScriptedEngine(replies, tokenizer=tokenizer)

    async def run():
        runner = RolloutRunner(engine, ChatFormat(tokenizer), toolbox, None, config)
        try:
            task = Task([{"role": "user", "content": "What is (37*41)+19?"}], uid="t0")
            return await runner.run(task, SamplingParams(), seed=0)
        finally:
            await runner.close()
            await toolbox.close()

    return asyncio.run(run())


def test_the_example_has_the_same_tokens_as_the_tool_agent(task_folder):
    own = rolled(task_folder, multi_turn={"function_tool_path": str(ROOT / "examples/calculator/tool.py")})
    found = rolled(task_folder, harness=str(EXAMPLE))
    assert (found.error, found.stop) == (None, Stop.FINISHED)
    (one,), (other,) = own.trajectories, found.trajectories
    assert one.token_ids == other.token_ids
    assert one.loss_mask == other.loss_mask
    assert one.num_turns == 3


@pytest.mark.slow
def test_the_experiment_trains(task_folder, tmp_path):
    (command,) = re.findall(r"agentrl (train \+experiment=calculator_harness.*)", PAGE)
    folder = f"trainer.default_local_dir={tmp_path}/run"
    files = [f"data.{name}_files=[{task_folder}/{name}.jsonl]" for name in ("train", "val")]
    small = ["data.train_batch_size=2", "rollout.n=2", "data.val_max_samples=2", f"model.path={task_folder}/model"]
    assert main([*command.split(), folder, *files, *small]) == 0
    groups = [*TrajectoryStore(tmp_path / "run/trajectories/train").groups(2)]
    assert len(groups) == 2
    assert json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])["harness/requests/mean"] >= 1
