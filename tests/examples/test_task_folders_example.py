"""The example of task folders: the teacher's commands solve the tasks, its mistakes do not, and the page is true."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from local_sandboxes import require_bubblewrap
from reader import blocks_of
from transformers import AutoTokenizer

from agentrl.data.task_folders.settings import TaskSettings
from agentrl.registry import load_module
from agentrl.sandboxes.loading import pool_of
from agentrl.task_folders import read_task_folder, task_sandbox, verify
from agentrl.tools.loading import tools_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/task_folders.md"
NUM_TASKS = {"train": 12, "val": 4, "test": 4}


@pytest.fixture(scope="module", params=["tool_agent", "mini_swe"])
def example(request, tmp_path_factory):
    """(the module, a small version of its files)."""
    folder = tmp_path_factory.mktemp("task_folders")
    module = load_module(str(ROOT / "examples/task_folders/make_tasks.py"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "NUM_DEMONSTRATIONS", 400)
        module.make_tasks(folder, 0, NUM_TASKS, request.param)
    return module, folder


def form_of(example):
    """The form of the demonstrations."""
    return example[0].FORMS[json.loads((example[1] / "task.json").read_text())["form"]]


def rewards(folder: Path, *command_lists: list[str]) -> list[float]:
    """The reward of the task after each list of commands."""

    async def run():
        pool, task, found = pool_of("local"), read_task_folder(folder), []
        for commands in command_lists:
            async with task_sandbox(task, pool) as sandbox:
                for command in commands:
                    await sandbox.run_command(command, 20.0)
                found.append((await verify(sandbox, task))["reward"])
        await pool.close()
        return found

    require_bubblewrap()
    return asyncio.run(run())


def kinds(example):
    """One folder of each kind of task, by the first word of its instruction."""
    folders = sorted(example[1].glob("*/*/"))
    return {(folder / "instruction.md").read_text().split()[0]: folder for folder in folders if folder.is_dir()}


@pytest.mark.slow
def test_solutions_have_reward_1_and_mistakes_0(example):
    found = {path: each for path, each in kinds(example).items() if path.istitle()}
    assert found.keys() == {"Write", "Append", "Copy", "Move", "Delete"}
    for word, folder in found.items():
        solution = (folder / "solution" / "solve.sh").read_text()
        assert rewards(folder, [solution], [], [f"{solution}\ntouch other"]) == [1.0, 0.0, 0.0], word


def test_a_quarter_of_the_demonstrations_is_correct(example):
    module, folder = example
    traces = [json.loads(line)["messages"] for line in (folder / "sft.jsonl").read_text().splitlines()]
    right = [
        trace for trace in traces if trace in (form_of(example).right_trace(task) for task in same_task(module, trace))
    ]
    assert len(right) / len(traces) == module.TEACHER_SHARE_CORRECT


def same_task(module, trace):
    """The task of a demonstration, made from its instruction."""
    words = trace[1]["content"].split()
    names, numbers = re.findall(r"\w\.txt", trace[1]["content"]), re.findall(r"\d+", trace[1]["content"])
    names, new = [*names, "other.txt"], (numbers or ["1"])[0]
    kind = {"Write": 0, "Append": 1, "Copy": 2, "Move": 3, "Delete": 4}[words[0]]
    commands = module.draw_task.__globals__["KINDS"]
    yield commands[kind](names[0], names[1], "0", new)


def test_no_instruction_occurs_twice_and_prompts_are_those_of_the_demonstrations(example):
    _, folder = example
    texts = [path.read_text() for path in folder.glob("*/*/instruction.md")]
    assert len(texts) == len(set(texts)) == sum(NUM_TASKS.values())
    demonstrated = json.loads((folder / "sft.jsonl").read_text().splitlines()[0])["messages"]
    config = (ROOT / "configs/experiment/task_folders.yaml").read_text()
    assert f"system_prompt: {demonstrated[0]['content']}\n" in config
    assert f'system_template="{demonstrated[0]["content"]}"' in (ROOT / "examples/task_folders/mini_swe.py").read_text()
    assert {text[-1] for text in texts} == {"t"}  # no end of line, as in the demonstrations


def test_digits_and_names_are_tokens(example):
    tokenizer = AutoTokenizer.from_pretrained(example[1] / "model")
    tokens = [tokenizer.decode(token) for token in tokenizer.encode("Write 482 to k.txt")]
    assert [each for each in tokens if each in "482k"] == ["4", "8", "2", "k"]


def test_the_page_shows_a_task_that_runs_as_it_says(tmp_path, monkeypatch, capsys):
    import subprocess

    blocks = blocks_of(PAGE)
    make, *_ = (block for block in blocks if block.language == "sh")
    subprocess.run(["bash", "-ec", make.text], cwd=tmp_path, check=True)
    (python,) = (block for block in blocks if block.language == "python")
    require_bubblewrap()
    monkeypatch.chdir(tmp_path)
    exec(compile(python.text, "page", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out.strip() in PAGE.read_text()
    (tools,) = (block for block in blocks if block.file == "tools.yaml")
    (tmp_path / "tools.yaml").write_text(tools.text)
    assert [tool.name for tool in tools_of(tmp_path / "tools.yaml")] == ["bash"]


def test_the_page_lists_settings_that_exist():
    rows = re.findall(r"^\| ((?:`\w+\.\w+`(?:, )?)+) \|", PAGE.read_text(), flags=re.MULTILINE)
    for section, key in (name.split(".") for row in rows for name in re.findall(r"`(\w+\.\w+)`", row)):
        part = TaskSettings.model_fields[section].annotation
        fields = getattr(part, "model_fields", None) or part.__args__[0].model_fields
        assert key in fields, key
