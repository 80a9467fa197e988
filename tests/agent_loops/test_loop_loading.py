"""Agent loops by name: built in, from YAML, from files, and the errors."""

from __future__ import annotations

import pytest
from loop_builders import CHAT, config

from agentrl.agent_loops.loading import LoopFactory
from agentrl.agent_loops.react import ReactAgent
from agentrl.agent_loops.single_turn import SingleTurnAgent
from agentrl.agent_loops.tool import ToolAgent
from agentrl.chat.parsers import tool_parsers
from agentrl.chat.parsers.hermes import HermesParser
from agentrl.chat.parsers.react import ReactParser
from agentrl.errors import AgentRLError, ConfigError, DataError, UnknownNameError

LOOP = """
from agentrl.agent_loops import AgentLoop
class MyLoop(AgentLoop):
    def __init__(self, *args, depth=1):
        super().__init__(*args)
        self.depth = depth
class NoLoop:
    def __init__(self, *args): pass
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "my_loop.py").write_text(LOOP)
    return tmp_path


def factory(folder, listing: str | None = None, default: str = "single_turn_agent") -> LoopFactory:
    if listing is None:
        return LoopFactory(CHAT, config(default))
    path = folder / "loops.yaml"
    path.write_text(listing.replace("FOLDER", str(folder)))
    return LoopFactory(CHAT, config(default, agent={"agent_loop_config_path": str(path)}))


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("single_turn_agent", SingleTurnAgent),
        ("single_turn", SingleTurnAgent),
        ("tool_agent", ToolAgent),
        ("tool_agent_loop", ToolAgent),
        ("verl.experimental.agent_loop.tool_agent_loop.ToolAgentLoop", ToolAgent),
        ("react", ReactAgent),
        (None, SingleTurnAgent),
    ],
)
def test_loops_are_found_by_name(folder, name, cls):
    assert type(factory(folder).build(name)) is cls


def test_only_the_configuration_may_name_a_loop_by_path(folder):
    path = "agentrl.agent_loops.tool:ToolAgent"
    assert type(factory(folder, default=path).build(path)) is ToolAgent
    with pytest.raises(DataError, match="code that a row names is not run"):
        factory(folder).build(path)


def test_each_rollout_gets_a_new_loop(folder):
    loops = factory(folder)
    assert loops.build("tool") is not loops.build("tool")


def test_loop_is_loaded_from_a_file(folder):
    loop = factory(folder, default=f"{folder}/my_loop.py:MyLoop").build(None)
    assert (type(loop).__name__, loop.depth) == ("MyLoop", 1)


def test_agent_loop_listing_passes_options(folder):
    loops = factory(folder, "- name: deep\n  _target_: FOLDER/my_loop.py:MyLoop\n  depth: 3\n", default="deep")
    assert loops.build(None).depth == 3
    assert type(loops.build("tool")) is ToolAgent


def test_the_format_is_the_loops_own_or_the_configured_one(folder):
    loops = factory(folder)
    assert type(loops.build("tool").parser) is tool_parsers.get("hermes")
    assert type(loops.build("react").parser) is tool_parsers.get("react")


@pytest.mark.parametrize(
    ("listing", "problem"),
    [
        ("- name: deep\n", r"loops.yaml: entry 0 must have a name and a _target_"),
        ("name: deep\n", r"expected a list"),
        ("- [", r"agent_loop_config_path"),
        ("- name: x\n  _target_: FOLDER/my_loop.py:MyLop\n", r"agent loop 'x': .*did you mean 'MyLoop'"),
        ("- name: x\n  _target_: nowhere.Loop\n", r"agent loop 'x': cannot import 'nowhere'"),
        ("- name: x\n  _target_: FOLDER/my_loop.py:MyLoop\n  dept: 3\n", r"agent loop 'x'.*unexpected keyword.*'dept'"),
        ("- name: x\n  _target_: FOLDER/my_loop.py:NoLoop\n", r"must be a subclass of agentrl.agent_loops.AgentLoop"),
        ("- name: x\n  _target_: FOLDER/my_loop.py:MyLoop\n  _partial_: true\n", r"'_partial_' is not supported"),
        ("- name: y\n  _target_: FOLDER/my_loop.py:MyLoop\n", r"unknown agent loop 'x'"),
    ],
)
def test_a_wrong_listing_is_refused_at_the_start(folder, listing, problem):
    with pytest.raises(AgentRLError, match=problem):
        factory(folder, listing, default="x")


def test_missing_listing_is_named():
    with pytest.raises(ConfigError, match=r"no_such\.yaml"):
        LoopFactory(CHAT, config(agent={"agent_loop_config_path": "no_such.yaml"}))


def test_loop_with_fixed_format_refuses_other_formats(folder):
    loops = factory(folder)
    assert type(loops.build("react", "react").parser) is type(loops.build("tool", "react").parser) is ReactParser
    assert isinstance(loops.build("tool").parser, HermesParser)
    with pytest.raises(ConfigError, match="'react' works with tool_format 'react', not 'hermes'"):
        loops.build("react", "hermes")
    with pytest.raises(UnknownNameError, match="unknown tool parser 'hermse': did you mean 'hermes'"):
        loops.build("tool", "hermse")
