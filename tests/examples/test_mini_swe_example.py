"""mini-swe-agent on task folders: its rollouts have the tokens of the demonstrations, and the page's commands train."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import pytest
import yaml
from local_sandboxes import require_bubblewrap
from reader import blocks_of, make_clone, shell
from transformers import AutoTokenizer

from agentrl.chat.format import ChatFormat
from agentrl.config.run import RunConfig
from agentrl.engines.base import SamplingParams
from agentrl.engines.scripted import ScriptedEngine
from agentrl.registry import load_module
from agentrl.rollouts.runner import RolloutRunner
from agentrl.tools.toolbox import load_toolbox
from agentrl.types.rollout import Stop
from agentrl.types.task import Task

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples/task_folders"


@pytest.fixture
def mini_python(peer_python) -> Path:
    """The interpreter of an environment with mini-swe-agent."""
    require_bubblewrap()
    return peer_python("mini_swe_agent")


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """(the module, a small version of its files)."""
    folder = tmp_path_factory.mktemp("mini_swe")
    module = load_module(str(FOLDER / "make_tasks.py"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "NUM_DEMONSTRATIONS", 400)
        module.make_tasks(folder, 0, {"train": 1}, "mini_swe")
    return module, folder


def demonstrated(module):
    """20 tasks, and a demonstration of each: right ones and all mistakes."""
    rng, form = random.Random(0), module.FORMS["mini_swe"]
    tasks = module.distinct_tasks(rng)
    for position in range(20):
        task = next(tasks)
        yield task, form.right_trace(task) if position < 8 else form.wrong_trace(task, rng)


def rolled(rows: list[Task], engine: ScriptedEngine, chat: ChatFormat, settings: Path):
    """The rollouts of mini-swe-agent."""
    tools = str(ROOT / "configs/tool_config/task_folders.yaml")
    rollout = {"harness": str(settings), "multi_turn": {"tool_config_path": tools}}
    config = RunConfig.model_validate({"model": {"path": "none"}, "rollout": rollout})
    toolbox = load_toolbox(config.rollout.multi_turn)

    async def run():
        runner = RolloutRunner(engine, chat, toolbox, None, config)
        try:
            return await asyncio.gather(*(runner.run(row, SamplingParams(), seed=0) for row in rows))
        finally:
            await runner.close()
            await toolbox.close()

    return asyncio.run(run())


@pytest.mark.nightly
def test_rollouts_have_exactly_the_tokens_of_the_demonstrations(example, mini_python, tmp_path):
    module, folder = example
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    chat, schema = ChatFormat(tokenizer), module.FORMS["mini_swe"].schema
    pairs, rows, wanted, replies = [*demonstrated(module)], [], [], {}
    for position, (task, trace) in enumerate(pairs):
        module.write_folder(tmp_path / f"t{position}", f"t{position}", task)
        extra_info = {"task_folder": str(tmp_path / f"t{position}")}
        messages = [{"role": "user", "content": task.instruction}]
        rows.append(Task(messages, data_source="task_folder", uid=f"t{position}", extra_info=extra_info))
        wanted.append([(each.author.value, list(each.token_ids)) for each in chat.dialogue(trace, [schema]).segments])
        replies[task.instruction] = [ids for author, ids in wanted[-1] if author == "demonstration"]

    def reply(request):
        text = tokenizer.decode(request.token_ids)
        (found,) = (turns for asked, turns in replies.items() if f"user\n{asked}<" in text)
        return found[text.count("<|im_start|>assistant") - 1]

    settings = yaml.safe_load((FOLDER / "mini_swe.yaml").read_text())
    own = {"function": str(FOLDER / settings["function"]), "python": str(mini_python)}
    (tmp_path / "mini.yaml").write_text(yaml.safe_dump({**settings, **own}))
    rollouts = rolled(rows, ScriptedEngine(reply), chat, tmp_path / "mini.yaml")
    for rollout, segments, (_, trace) in zip(rollouts, wanted, pairs, strict=True):
        assert (rollout.error, rollout.stop) == (None, Stop.FINISHED), trace
        (trajectory,) = rollout.trajectories
        found = [(each.author.value, list(each.token_ids)) for each in trajectory.segments]
        assert found == [({"demonstration": "model"}.get(author, author), ids) for author, ids in segments], trace
    assert [rollout.tool_rewards["verifier"] for rollout in rollouts] == [1.0] * 8 + [0.0] * 12


@pytest.mark.nightly
def test_the_commands_of_the_page_train(mini_python, tmp_path):
    """With short runs: see `short_agentrl.py`."""
    (block,) = (block for block in blocks_of(ROOT / "docs/harnesses.md") if block.kind == "harness")
    make_clone(tmp_path)
    (tmp_path / ".venv-mini-swe").symlink_to(mini_python.parents[1])
    done = shell(tmp_path, block.text, block.kind, [sys.executable, "-m", "agentrl"])
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
