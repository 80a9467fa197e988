"""The tables of docs/tools.md and docs/simulated-users.md: every name, signature, type and file is that of the code."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import inspect
import re
import textwrap
from pathlib import Path

import pytest

from agentrl.agent_loops.base import AgentLoop
from agentrl.agent_loops.conversation import Conversation
from agentrl.config.rollout import MultiTurnConfig
from agentrl.interactions.base import BaseInteraction, InteractionData
from agentrl.interactions.model_config import ModelUserConfig
from agentrl.rewards.reward_view import RolloutInfo
from agentrl.tools.base import BaseTool, ToolResponse
from agentrl.tools.binding import AgentData
from agentrl.tools.toolbox import load_toolbox

ROOT = Path(__file__).parents[2]
TOOLS, USERS = ((ROOT / "docs" / name).read_text() for name in ("tools.md", "simulated-users.md"))


def table(page: str, head: str) -> dict[str, list[str]]:
    """The rows of the table whose first column is called `head`, by their first cell."""
    (lines,) = re.findall(rf"^\| {re.escape(head)} \|.*\n\|[-|]+\n((?:\|.*\n)+)", page, flags=re.MULTILINE)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines.splitlines()]
    assert len({row[0] for row in rows}) == len(rows)
    return {row[0].strip("`"): row[1:] for row in rows}


def signature(name: str, function: object) -> str:
    """`name(argument, *, by_name, **kwargs)`, as the tables write it."""
    words, marked = [], False
    for each in list(inspect.signature(function).parameters.values())[1:]:
        if each.kind is each.KEYWORD_ONLY and not marked:
            words, marked = [*words, "*"], True
        words.append(("**" if each.kind is each.VAR_KEYWORD else "") + each.name)
    return f"{name}({', '.join(words)})"


def returned(function: object) -> str:
    return str(inspect.signature(function).return_annotation).replace(" | ", " or ")


def methods(kind: type) -> dict[str, str]:
    """Signature -> type of the result, of all public methods and properties that the class defines."""
    found = {}
    for name, member in vars(kind).items():
        if isinstance(member, property) and not name.startswith("_"):
            found[name] = returned(member.fget)
        elif inspect.isfunction(member) and not name.startswith("_"):
            found[signature(name, member)] = returned(member)
    return found


def attributes(kind: type) -> set[str]:
    """Public attributes: those of the class body, and those that `__init__` sets."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    names = {node.target.id for node in definition.body if isinstance(node, ast.AnnAssign)}
    (start,) = [node for node in definition.body if getattr(node, "name", "") == "__init__"]
    targets = [
        target
        for node in ast.walk(start)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    names |= {target.attr for target in targets if isinstance(target, ast.Attribute)}
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize("kind", [Conversation, AgentLoop])
def test_members_of_loops_and_conversations(kind):
    rows = table(TOOLS, f"member of `{kind.__name__}`")
    assert {name: row[0] for name, row in rows.items() if row[0]} == methods(kind)
    assert {name for name, row in rows.items() if not row[0]} == attributes(kind)


@pytest.mark.parametrize(("page", "kind"), [(TOOLS, BaseTool), (USERS, BaseInteraction)], ids=["tool", "user"])
def test_methods_of_tools_and_users(page, kind):
    rows = table(page, f"method of `{kind.__name__}`")
    start = {signature("__init__", kind.__init__): "None"}
    assert {name: row[0] for name, row in rows.items()} == start | methods(kind)


@pytest.mark.parametrize(
    ("page", "kind"),
    [(TOOLS, AgentData), (TOOLS, ToolResponse), (USERS, InteractionData)],
    ids=["AgentData", "ToolResponse", "InteractionData"],
)
def test_fields(page, kind):
    properties = {name for name, member in vars(kind).items() if isinstance(member, property)}
    names = {field.name for field in dataclasses.fields(kind)} | properties
    assert table(page, f"field of `{kind.__name__}`").keys() == names


def test_attributes_of_users():
    rows = table(USERS, "attribute of `BaseInteraction`")
    assert rows.keys() == attributes(BaseInteraction) - {"config", "name"}
    assert {name: row[0] for name, row in rows.items()} == {name: str(getattr(BaseInteraction, name)) for name in rows}


def test_extra_info():
    rows = table(TOOLS, "key of `extra_info`")
    assert {name: row[0] for name, row in rows.items()} == {
        name: kind.__forward_arg__ for name, kind in RolloutInfo.__annotations__.items()
    }


def test_settings_of_a_user_that_a_model_plays():
    rows = table(USERS, "key")
    listed = {name.strip(" `"): row[0] for names, row in rows.items() for name in names.split(",")}
    fields = {name: field for name, field in ModelUserConfig.model_fields.items() if name != "name"}
    assert listed.keys() == fields.keys()
    shown = {None: ("none", ""), True: ("true",), False: ("false",)}
    for name, default in listed.items():
        value = fields[name].get_default(call_default_factory=True)
        if name in ("prompt", "timeout_s", "max_retries", "extra_body"):  # described in words, or two in a row
            continue
        text = str(list(value)).replace(".0", "") if isinstance(value, tuple) else str(value)
        valid = shown[value] if value is None or isinstance(value, bool) else (text,)
        assert default.strip("`") in valid, name


FILES = sorted(path.name for path in (ROOT / "configs/tool_config").glob("*.yaml"))


def test_every_file_of_tools_is_in_the_table():
    assert sorted(table(TOOLS, "file")) == FILES


@pytest.mark.parametrize("name", FILES)
def test_every_file_of_tools_loads(name, monkeypatch, tmp_path):
    monkeypatch.setenv("E2B_API_KEY", "none")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents/owls.txt").write_text("Owls fly at night.")
    monkeypatch.chdir(tmp_path)
    toolbox = load_toolbox(MultiTurnConfig(tool_config_path=ROOT / "configs/tool_config" / name))
    try:
        assert toolbox.schemas
    finally:
        asyncio.run(toolbox.close())
