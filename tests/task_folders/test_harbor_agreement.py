"""Task folders and rewards are read as harbor itself reads them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from folder_builders import make_folder, make_steps

from agentrl.data.task_folders.folder import TaskFolderError, read_task_folder
from agentrl.task_folders.steps import combined, ends_task
from agentrl.task_folders.verifier import VerifierError, read_reward

SCRIPT = Path(__file__).parents[2] / "benchmarks/peers/harbor_tasks.py"
SETTINGS = {
    "empty": "",
    "version": 'schema_version = "1.4"\n',
    "unknown keys": 'new = 1\n[environment]\nnew = {a = 1}\n[metadata]\nx = "y"\n',
    "named": '[task]\nname = "org/name"\nkeywords = ["a"]\n',
    "values": (
        '[agent]\ntimeout_sec = 60\nuser = "agent"\n[verifier]\ntimeout_sec = 1.5\nenv = {A = "b"}\nuser = 0\n'
        '[environment]\nbuild_timeout_sec = 9\ndocker_image = "x:1"\nmemory_mb = 512\ncpus = 2\nstorage_mb = 1024\n'
        'workdir = "/srv"\nenv = {C = "d"}\n[solution.env]\nE = "f"\n'
    ),
    "no network": '[environment]\nnetwork_mode = "no-network"\n',
    "internet": "[environment]\nallow_internet = false\n",
    "not TOML": "a = ",
    "wrong name": '[task]\nname = "name"\n',
    "wrong timeout": '[verifier]\ntimeout_sec = "soon"\n',
    "wrong env": "[verifier]\nenv = {A = [1]}\n",
    "wrong os": '[environment]\nos = "mac"\n',
    "wrong mode": '[environment]\nnetwork_mode = "some"\n',
    "capital os": '[environment]\nos = "Linux"\n',
}
INSTRUCTIONS = [
    "Do it",
    "Do it\n",
    "<!-- harbor-canary GUID x -->\n# Canary: y\n\n\n  Do it\n# canary\n",
    "# Title\n<!-- canary -->\nDo it",
    "\n\nDo it",
    "  <!-- a canary -->  \nDo it",
]
NUMBERS = ["1", " 0.5\n", "-1e-3", "", " ", "nan", "inf", "yes", "1 2", "1_0", "0x1", "Infinity", "\ufeff1"]
OBJECTS = [
    '{"reward": 1}',
    '{"a": 0.25, "b": 1}',
    "{}",
    "",
    "[1]",
    "1",
    '{"a": "1"}',
    '{"a": null}',
    '{"a": NaN}',
    '{"a": {}}',
    '{"a": 1',
    '{"a": true, "b": false}',
    '{"a": 1e999}',
    "null",
]
NAMES = ["one", "..", "a/b", "con", "CON.x", "a.", " ", "", "a:b", "aux ", "é", "x" * 255, "x" * 256, "com¹", ".hidden"]
OF_STEPS = [
    {},
    {"settings": 'multi_step_reward_strategy = "final"\n', "options": "min_reward = 1\n"},
    {"settings": 'multi_step_reward_strategy = "best"\n'},
    {"options": "min_reward = {a = 0.5}\n"},
    {"options": 'min_reward = "high"\n'},
    {"steps__one__tests__test.sh": "", "steps__one__instruction.md": "# canary\nDo it"},
    {"steps__one__tests__test.sh": "", "steps__two__tests__test.sh": ""},
]
"""The last one has no tests of the whole task."""
STEPS = [
    (None, None, [{"reward": 1.0}, {"reward": 0.5}]),
    ("mean", 0.5, [{"reward": 1.0}, {"other": 0.5}]),
    ("final", 0.5, [{"reward": 1.0}, {"reward": 0.5}]),
    ("mean", {"a": 0.5, "b": 0}, [{"a": 0.5}]),
    ("mean", {"a": 0.5, "b": 0}, [{"a": 0.5, "b": 0}]),
    ("mean", None, [{"a": 0.25}, {"b": 1.0}, {"a": 1.0, "b": 0.5}]),
]
pytestmark = pytest.mark.slow


def ours(folder: Path) -> dict[str, object] | None:
    try:
        task = read_task_folder(folder)
    except TaskFolderError:
        return None
    settings = task.settings
    parts = {
        "agent": settings.agent.model_dump(include={"timeout_sec", "user"}),
        "verifier": settings.verifier.model_dump(include={"timeout_sec", "env", "user"}),
        "environment": settings.environment.model_dump(
            include={"build_timeout_sec", "docker_image", "memory_mb", "workdir", "env", "cpus", "storage_mb", "os"}
        ),
        "solution": settings.solution.model_dump(),
    }
    steps = [[step.name, step.instruction, step.settings.min_reward] for step in task.steps]
    instruction = "" if steps else task.instruction
    strategy = settings.multi_step_reward_strategy
    return {"name": task.name, "instruction": instruction, "steps": steps, "strategy": strategy, **parts}


def our_steps(folder: Path, strategy: str | None, least: object, found: list[dict[str, float]]) -> list[object]:
    text = "" if strategy is None else f'multi_step_reward_strategy = "{strategy}"\n'
    task = read_task_folder(make_steps(folder, "one", settings=text))
    step = replace(task.steps[0], settings=task.steps[0].settings.model_copy(update={"min_reward": least}))
    try:
        rewards = combined(task, found)
    except VerifierError:
        rewards = None
    return [least is not None and ends_task(step, found[-1]), rewards]


def our_reward(text: str | None, json_text: str | None) -> dict[str, float] | None:
    name, data = ("reward.txt", text) if json_text is None else ("reward.json", json_text)
    try:
        return None if data is None else read_reward(name, data.encode())
    except ValueError:
        return None


@pytest.mark.nightly
def test_folders_and_rewards_are_read_as_by_harbor(tmp_path, run_peer):
    folders = [make_folder(tmp_path / f"s{at}", settings=text) for at, text in enumerate(SETTINGS.values())]
    folders += [make_folder(tmp_path / f"i{at}", instruction=text) for at, text in enumerate(INSTRUCTIONS)]
    missing = {"instruction": None, "settings": None, "test": None}
    folders += [make_folder(tmp_path / f"no {key}", **{key: value}) for key, value in missing.items()]
    folders.append(make_folder(tmp_path / "no environment"))
    (folders[-1] / "environment").rmdir()
    folders += [make_steps(tmp_path / f"n{at}", "one") for at in range(len(NAMES))]
    for folder, name in zip(folders[-len(NAMES) :], NAMES, strict=True):
        (folder / "task.toml").write_text(f"[[steps]]\nname = {json.dumps(name)}\n")
        if "/" not in name and name not in ("", "..") and len(name.encode()) < 256:
            (folder / "steps/one").rename(folder / "steps" / name)
    folders += [make_steps(tmp_path / f"m{at}", "one", "two", **more) for at, more in enumerate(OF_STEPS)]
    (folders[-1] / "tests/test.sh").unlink()
    rewards = [(text, None) for text in NUMBERS] + [(None, text) for text in OBJECTS]
    rewards += [(None, None), ("1", '{"a": 0.5}'), ("1", ""), ("", '{"a": 0.5}')]
    asked = tmp_path / "asked.json"
    asked.write_text(json.dumps({"folders": [str(folder) for folder in folders], "rewards": rewards, "steps": STEPS}))
    theirs = run_peer("harbor", SCRIPT, asked)
    assert {folder.name: ours(folder) for folder in folders} == {
        folder.name: found for folder, found in zip(folders, theirs["folders"], strict=True)
    }
    assert [(texts, our_reward(*texts)) for texts in rewards] == [
        (texts, found) for texts, found in zip(rewards, theirs["rewards"], strict=True)
    ]
    assert [our_steps(tmp_path / f"c{at}", *each) for at, each in enumerate(STEPS)] == theirs["steps"]
    assert sum(found is not None for found in theirs["folders"]) > 10  # harbor accepts and refuses some
    assert sum(found is None for found in theirs["folders"]) > 5
