from __future__ import annotations

from pathlib import Path

import pytest
from tool_builders import call, run_calls, task

from agentrl.config.rollout import MultiTurnConfig
from agentrl.errors import AgentRLError, ConfigError, DataError
from agentrl.tools import OpenAIFunctionToolSchema
from agentrl.tools.loading import load_tools
from agentrl.tools.toolbox import load_toolbox
from agentrl.types.rollout import Outcome

CONFIGS = Path(__file__).parents[2] / "configs" / "tool_config"

TOOLS_FILE = '''
from agentrl.tools import BaseTool, ToolResponse, ToolSchema, tool

@tool
def add(a: int, b: int = 1) -> str:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return str(a + b)

def plain(text: str) -> str:
    """Not marked."""
    return text.upper()

class Own(BaseTool):
    """Makes its schema itself, as verl's tools may."""

    def __init__(self, config, tool_schema):
        super().__init__(config, tool_schema)

    def get_openai_tool_schema(self):
        return ToolSchema.model_validate({"type": "function", "function": {"name": "own", "description": "d"}})

    async def execute(self, instance_id, parameters, **kwargs):
        return ToolResponse(text=str(self.config["scale"])), 0.0, {}

class Needs(BaseTool):
    async def execute(self, instance_id, parameters, **kwargs):
        return ToolResponse(text=parameters["q"]), 0.0, {}
'''


@pytest.fixture
def config(tmp_path):
    (tmp_path / "my_tools.py").write_text(TOOLS_FILE)

    def write(text, **options):
        path = tmp_path / "tools.yaml"
        path.write_text(text.replace("HERE", str(tmp_path)))
        return MultiTurnConfig(tool_config_path=path, **options)

    return write


def loaded(config):
    return load_toolbox(config).tools


def test_shipped_calculator_tool_is_loaded():
    box = load_toolbox(MultiTurnConfig(tool_config_path=CONFIGS / "calculator.yaml"))
    (schema,) = box.schemas
    assert schema.function.parameters["required"] == ["expression"]


def test_shipped_gsm8k_keeps_the_best_verdict():
    (tool,) = load_tools(MultiTurnConfig(tool_config_path=CONFIGS / "gsm8k.yaml"))
    row = task(tools_kwargs={"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "1,234"}}})
    answers = ["7", "$1234", "8", "x"]
    results, session = run_calls([tool], *[call("calc_gsm8k_reward", answer=answer) for answer in answers], row=row)
    assert [result.reward for result in results] == [-0.05, 0.0, -0.05, -0.05]
    assert results[1].text == "Current parsed answer=1234 reward=1.0"
    assert session.rewards == {"calc_gsm8k_reward": 1.0}


def test_a_row_without_its_ground_truth_ends_the_run():
    (tool,) = load_tools(MultiTurnConfig(tool_config_path=CONFIGS / "gsm8k.yaml"))
    with pytest.raises(DataError, match=r"create_kwargs\.ground_truth"):
        run_calls([tool], call("calc_gsm8k_reward", answer="1"))


def test_verl_tool_format_is_read(config):
    text = """
tools:
  - class_name: HERE/my_tools.py:Needs
    config: {type: native, timeout: 3}
    tool_schema:
      type: function
      function:
        name: search
        description: Looks things up.
        parameters:
          type: object
          properties:
            q: {type: string, description: words}
            list: {type: array, item: {type: string}}
          required: [q]
        strict: false
  - class_name: HERE/my_tools.py:Own
    config: {type: native, scale: "${oc.env:TOOL_SCALE,7}"}
"""
    tools = load_tools(config(text))
    assert [tool.name for tool in tools] == ["search", "own"]
    told = tools[0].get_openai_tool_schema().for_template()["function"]
    assert told["parameters"]["properties"]["list"] == {"type": "array", "item": {"type": "string"}}
    results, _ = run_calls(tools, call("search", q="found"), call("own"))
    assert [(result.text, result.outcome) for result in results] == [("found", Outcome.OK), ("7", Outcome.OK)]
    assert OpenAIFunctionToolSchema is type(tools[0].tool_schema)


def test_short_tool_format_is_read(config):
    text = """
tools:
  - name: calculator
    description: Do sums.
    timeout_s: 2
    parameters:
      expression: {type: string, description: a sum}
  - name: shout
    function: my_tools.py:plain
  - function: HERE/my_tools.py:add
"""
    tools = loaded(config(text))
    assert list(tools) == ["calculator", "shout", "add"]
    assert tools["calculator"].deadline_s == 2
    assert tools["calculator"].schema.function.description == "Do sums."
    assert tools["calculator"].schema.function.parameters == {
        "type": "object",
        "properties": {"expression": {"type": "string", "description": "a sum"}},
        "required": ["expression"],
    }
    results, _ = run_calls(load_tools(config(text)), call("shout", text="a"), call("add", a=2))
    assert [result.text for result in results] == ["A", "3"]


def test_tools_are_loaded_from_a_file_of_functions(config, tmp_path):
    (tool,) = load_tools(MultiTurnConfig(function_tool_path=tmp_path / "my_tools.py"))
    assert tool.name == "add"


def test_extra_tools_join(tmp_path):
    def extra(x: int) -> int:
        return x

    assert list(load_toolbox(MultiTurnConfig(), extra_tools=[extra]).tools) == ["extra"]


NATIVE = "config: {type: native}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tool: []", r"tools\.yaml: expected a list under 'tools', found tool"),
        ("tools: [", r"tools\.yaml: "),
        ("tools: [3]", r"tools\[0\] must be a mapping"),
        ("tools: [{}]", r"tools\[0\]: a tool needs 'class_name'"),
        ("tools: [{name: calculater}]", r"tools\[0\]: unknown tool 'calculater': did you mean 'calculator'"),
        (
            "tools: [{name: calculator, descripton: x}]",
            r"tools\[0\]: unknown key 'descripton': did you mean 'description'",
        ),
        (
            "tools: [{name: calculator, parameters: {expresion: {type: string}}}]",
            r"the function has no parameter 'expresion': did you mean 'expression'",
        ),
        ("tools: [{name: calculator, parameters: {}}]", r"needs 'expression'"),
        ("tools: [{function: 'agentrl.tools.calculator:_LEVELS'}]", "is not a function"),
        ("tools: [{class_name: agentrl.types.messages.ToolSchema}]", "must be a subclass of"),
        ("tools: [{name: calculator, isolation: box}]", r"tools\[0\]: 'isolation'"),
        (
            "tools: [{name: calculator, parameters: {expression: {type: text}}}]",
            r"schema of tool 'calculator', at properties\.expression\.type",
        ),
        ("tools: [{class_name: verl.tools.base_tool.BaseTool, " + NATIVE + "}]", "belongs to verl"),
        ("tools: [{class_name: HERE/my_tools.py:Nedes, " + NATIVE + "}]", "did you mean 'Needs'"),
        ("tools: [{class_name: no.such.Tool, " + NATIVE + "}]", "cannot import 'no.such'"),
        ("tools: [{class_name: HERE/my_tools.py:Needs, " + NATIVE + "}]", "no 'tool_schema' is given"),
        ("tools: [{class_name: a.B, config: {type: mcp}}]", r"tools\[0\]: 'type: mcp' supports MCPBaseTool and"),
        ("tools: [{class_name: a.B, config: {type: natve}}]", "'type: native'"),
        ("tools: [{class_name: a.B, conifg: {}}]", "unknown key 'conifg': did you mean 'config'"),
        (
            "tools: [{class_name: HERE/my_tools.py:Needs, " + NATIVE + ", tool_schema: {function: {}}}]",
            r"tools\[0\]: 'function\.name'",
        ),
    ],
)
def test_mistakes_are_named(config, text, message):
    with pytest.raises(AgentRLError, match=message) as caught:
        load_toolbox(config(text))
    assert "\n" not in str(caught.value)


def test_missing_or_empty_files(tmp_path):
    with pytest.raises(ConfigError, match="there is no file"):
        load_tools(MultiTurnConfig(tool_config_path=tmp_path / "none.yaml"))
    with pytest.raises(AgentRLError, match="there is no file"):
        load_tools(MultiTurnConfig(function_tool_path=tmp_path / "none.py"))
    (tmp_path / "empty.py").write_text("x = 1")
    with pytest.raises(ConfigError, match="has no function marked with @tool"):
        load_tools(MultiTurnConfig(function_tool_path=tmp_path / "empty.py"))
    (tmp_path / "broken.py").write_text("import nothing_like_this")
    with pytest.raises(ConfigError, match=r"cannot import .*ModuleNotFoundError"):
        load_tools(MultiTurnConfig(function_tool_path=tmp_path / "broken.py"))
