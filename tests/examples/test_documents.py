"""What the documentation shows runs, and what it points at exists."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agentrl.agent_loops import agent_loops
from agentrl.config.validate import config_fields
from agentrl.tools.function import TOOLS

ROOT = Path(__file__).parents[2]
PAGES = ("extending", "evaluate", "gpu", "replay", "view")
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / f"docs/{page}.md" for page in PAGES)]


def blocks(path, language):
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_python_runs_and_json_parses(path):
    for code in blocks(path, "python"):
        exec(compile(code, str(path), "exec"), {"__name__": "document"})
    for text in blocks(path, "json"):
        assert json.loads(text)


def test_what_the_readme_defines_is_registered():
    for code in blocks(ROOT / "README.md", "python"):
        exec(compile(code, "README.md", "exec"), {"__name__": "document"})
    assert "search" in TOOLS.names()
    assert "my_agent" in agent_loops.names()


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
    pattern = r"\b((?:model|data|rollout|actor|algorithm|reward|trainer)\.[a-z_.]*[a-z])(?==|`)"
    assert [name for name in re.findall(pattern, path.read_text()) if name not in keys | sections] == []
