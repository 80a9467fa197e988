"""Tool failures become data of the rollout; tools that fail to load are refused."""

from __future__ import annotations

import pytest

LOOP = "rollout.agent.default_agent_loop=tool_agent"
PATIENT = "rollout.multi_turn.tool_timeout_s=30"
"""For tools that must not time out, on a busy machine."""
BROKEN = "rollout.multi_turn.function_tool_path: cannot import '{file}': "


def file_of(bad, key: str, name: str) -> list[str]:
    return [LOOP, f"rollout.multi_turn.{key}={bad.folder}/{name}"]


def act(bad, body: str, kind: str = "def", mark: str = "@tool") -> list[str]:
    """Overrides for a tool `act` with this body, which every rollout calls once."""
    text = f"{mark}\n{kind} act(x: int) -> object:\n    'Acts.'\n    {body}\n"
    bad.write("tools.py", f"import asyncio, os, sys, time\nfrom agentrl.tools import tool\n{text}")
    bad.calls("act", x=1)
    return [*file_of(bad, "function_tool_path", "tools.py"), "rollout.multi_turn.tool_timeout_s=0.1"]


@pytest.mark.slow
@pytest.mark.one_in(9)
@pytest.mark.parametrize(
    ("kind", "body", "outcome"),
    [
        ("def", "raise KeyError(x)", "tool_error"),
        ("async def", "raise KeyError(x)", "tool_error"),
        ("def", "time.sleep(1)", "timeout"),
        ("async def", "await asyncio.sleep(60)", "timeout"),
        ("def", "return 'x' * 10_000_000", "ok"),
        ("def", "print('x' * 10_000_000)", "ok"),
        ("def", "return None", "ok"),
        ("def", "return b'text'", "ok"),
        ("def", "return bytes([255, 254])", "tool_error"),
        ("def", "return 'ok', float('nan')", "tool_error"),
        ("def", "return 1, 2, 3, 4", "tool_error"),
        ("def", "sys.exit(3)", "tool_error"),
        ("async def", "sys.exit(3)", "tool_error"),
    ],
)
def test_tool_errors_are_data(bad, kind, body, outcome):
    patient = [] if outcome == "timeout" else [PATIENT]
    row = bad.goes_on(*act(bad, body, kind), *patient, "data.max_response_length=600")
    assert row[f"tool/act/{outcome}"] == row["tool/act/calls"] == 8
    assert row["response_length/max"] < 600  # an answer is cut to max_tool_response_length
    assert row["reward/mean"] == 1.0  # every rollout continued and answered "done"


@pytest.mark.slow
def test_a_coroutine_that_blocks_its_loop_is_abandoned(bad):
    row = bad.goes_on(*act(bad, "time.sleep(1)", "async def"))
    assert row["tool/act/timeout"] >= 1
    # only the rollouts queued behind the hung call failed
    assert row["rollouts/failed"] == row["rollouts/infra_failed"] < 1


@pytest.mark.slow
def test_a_tool_that_ends_its_process_ends_no_other(bad):
    line = bad.refused(*act(bad, "os._exit(3)", mark="@tool(isolation='process')"), PATIENT)
    assert "all 8 rollouts failed" in line
    assert "tool 'act': " in line
    assert "process ended with status 3" in line


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("x = 1\ndef f(:\n", BROKEN + "SyntaxError: invalid syntax ({file}:2)"),
        (
            "import nothing_like_this\n",
            BROKEN + "ModuleNotFoundError: No module named 'nothing_like_this' ({file}:1)",
        ),
        ("raise SystemExit\n", BROKEN + "SystemExit: ({file}:1)"),
        ("def f(x: int): pass\n", "{file} has no function marked with @tool"),
        (
            "from agentrl.tools import tool\n@tool\ndef f(x): pass\n",
            "{file}: tool function 'f': parameter 'x' needs a type",
        ),
        (
            "from agentrl.tools import tool\n@tool\ndef f(x: open): pass\n",
            "{file}: tool function 'f': ",
        ),
        (
            "from agentrl.tools import tool\n@tool(timeout_s=-1)\ndef f(x: int): pass\n",
            "{file}: tool 'f': timeout_s must be above 0, not -1",
        ),
        (
            "from agentrl.tools import tool\n@tool('a')\ndef f(): pass\n@tool('a')\ndef g(): pass\n",
            "two tools have the name 'a'",
        ),
    ],
)
def test_unusable_file_of_functions_is_refused(bad, text, complaint):
    file = bad.write("tools.py", text)
    line = bad.refused(*file_of(bad, "function_tool_path", "tools.py"))
    assert complaint.format(file=file) in line


@pytest.mark.slow
def test_missing_file_is_refused(bad):
    for key, name in (("function_tool_path", "tols.py"), ("tool_config_path", "tols.yaml")):
        assert f"there is no file '{bad.folder}/{name}'" in bad.refused(*file_of(bad, key, name))
    assert "is not a Python file" in bad.refused(*file_of(bad, "function_tool_path", "train.jsonl"))


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("tools: [\n  - a\n", "line 2"),
        ("tools:\n\t- name: calculator\n", "line 2"),
        ("tool: [{name: calculator}]", "expected a list under 'tools', found tool"),
        ("", "expected a list under 'tools', found no keys"),
        ("tools: []", "nothing is listed under 'tools'"),
        ("tools: [calculator]", "tools[0] must be a mapping"),
        ("tools: [{name: calculater}]", "tools[0]: unknown tool 'calculater': did you mean 'calculator'?"),
        ("tools: [{nmae: calculator}]", "tools[0]: unknown key 'nmae': did you mean 'name'?"),
        ("tools: [{name: 3}]", "tools[0]: 'name': Input should be a valid string"),
        (
            "tools: [{name: calculator}, {name: calculator}]",
            "tools[1]: the name 'calculator' is used by another tool",
        ),
        ("tools: [{name: '${oc.env:NOT_SET_ANYWHERE}'}]", "NOT_SET_ANYWHERE"),
        ("tools: [{class_name: own.py:Missing}]", "'own.py' has no 'Missing'"),
    ],
)
def test_unusable_tool_yaml_is_refused(bad, text, complaint, monkeypatch):
    monkeypatch.chdir(bad.folder)
    bad.write("own.py", "")
    file = bad.write("tools.yaml", text)
    line = bad.refused(*file_of(bad, "tool_config_path", "tools.yaml"))
    assert str(file) in line
    assert complaint in line.replace(f"{bad.folder}/own.py", "own.py")


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ("{type: text}", "at properties.expression.type: 'text' is not one of array, boolean, integer"),
        ("{type: string, enum: 3}", "at properties.expression.enum: 3 is not of type 'array'"),
    ],
)
def test_invalid_schema_is_refused(bad, parameters, complaint):
    bad.write("tools.yaml", f"tools: [{{name: calculator, parameters: {{expression: {parameters}}}}}]")
    line = bad.refused(*file_of(bad, "tool_config_path", "tools.yaml"))
    assert f"schema of tool 'calculator', {complaint}" in line
