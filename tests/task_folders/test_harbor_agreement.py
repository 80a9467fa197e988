"""Task folders and rewards are read as harbor itself reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from folder_builders import make_folder

from agentrl.data.task_folders.folder import TaskFolderError, read_task_folder
from agentrl.task_folders.verifier import read_reward

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
    return {"name": task.name, "instruction": task.instruction, **parts}


def our_reward(text: str | None, json_text: str | None) -> dict[str, float] | None:
    name, data = ("reward.txt", text) if json_text is None else ("reward.json", json_text)
    try:
        return None if data is None else read_reward(name, data.encode())
    except ValueError:
        return None


def test_folders_and_rewards_are_read_as_by_harbor(tmp_path, run_peer):
    folders = [make_folder(tmp_path / f"s{at}", settings=text) for at, text in enumerate(SETTINGS.values())]
    folders += [make_folder(tmp_path / f"i{at}", instruction=text) for at, text in enumerate(INSTRUCTIONS)]
    missing = {"instruction": None, "settings": None, "test": None}
    folders += [make_folder(tmp_path / f"no {key}", **{key: value}) for key, value in missing.items()]
    folders.append(make_folder(tmp_path / "no environment"))
    (folders[-1] / "environment").rmdir()
    rewards = [(text, None) for text in NUMBERS] + [(None, text) for text in OBJECTS]
    rewards += [(None, None), ("1", '{"a": 0.5}'), ("1", ""), ("", '{"a": 0.5}')]
    asked = tmp_path / "asked.json"
    asked.write_text(json.dumps({"folders": [str(folder) for folder in folders], "rewards": rewards}))
    theirs = run_peer("harbor", SCRIPT, asked)
    assert {folder.name: ours(folder) for folder in folders} == {
        folder.name: found for folder, found in zip(folders, theirs["folders"], strict=True)
    }
    assert [(texts, our_reward(*texts)) for texts in rewards] == [
        (texts, found) for texts, found in zip(rewards, theirs["rewards"], strict=True)
    ]
    assert sum(found is not None for found in theirs["folders"]) > 10  # harbor accepts and refuses some
    assert sum(found is None for found in theirs["folders"]) > 5
