"""verl's classes in tool, interaction and reward settings: mapped to agentrl's, or refused with what to use."""

from __future__ import annotations

import asyncio

import pytest
from sandbox_fusion_server import sandbox_fusion

from agentrl.chat.base import ParsedCall
from agentrl.cli.main import main
from agentrl.compat.verl.keys.translate import nested, translate
from agentrl.config.rollout import MultiTurnConfig
from agentrl.errors import AgentRLError, ConfigError
from agentrl.interactions.loading import load_interactions
from agentrl.interactions.session import InteractionSession
from agentrl.registry import load_object
from agentrl.rewards.builtin.registry import rewards
from agentrl.tools.loading import load_tools
from agentrl.tools.toolbox import Toolbox
from agentrl.types.task import Task
from agentrl.utils.verl_classes import (
    INTERACTIONS,
    MANAGERS,
    REWARDS,
    SANDBOX_FUSION_TOOL,
    TOOLS,
    reward_in_place_of,
)


@pytest.mark.parametrize("name", [name for name in (*TOOLS, *INTERACTIONS) if name != SANDBOX_FUSION_TOOL])
def test_every_class_is_replaced_or_refused_with_what_to_use(name, tmp_path):
    kind, classes = ("tools", TOOLS) if name in TOOLS else ("interaction", INTERACTIONS)
    file = tmp_path / "verl.yaml"
    config = "{retrieval_service_url: http://localhost}" if "search_tool.SearchTool" in name else "{}"
    file.write_text(f"{kind}: [{{class_name: {name}, config: {config}}}]")

    def load():
        return load_tools(MultiTurnConfig(tool_config_path=file)) if kind == "tools" else load_interactions(file)

    if target := classes[name].target:
        (loaded,) = load() if kind == "tools" else load().values()
        assert type(loaded) is load_object(target)
    else:
        with pytest.raises(ConfigError, match=r"belongs to verl: \S+") as caught:
            load()
        assert classes[name].instead in str(caught.value)


def test_unknown_classes_of_verl_are_refused_with_the_nearest_name(tmp_path):
    file = tmp_path / "verl.yaml"
    file.write_text("tools: [{class_name: verl.tools.gsm8k_tool.Gsm9kTool, config: {}}]")
    with pytest.raises(ConfigError, match=r"subclass of agentrl\.tools\.base\.BaseTool .*Gsm8kTool"):
        load_tools(MultiTurnConfig(tool_config_path=file))
    file.write_text("interaction: [{class_name: verl.interactions.other.Other, config: {}}]")
    with pytest.raises(ConfigError, match=r"subclass of agentrl\.interactions\.base\.BaseInteraction"):
        load_interactions(file)


GSM8K_TOOL = """
tools:
  - class_name: verl.tools.gsm8k_tool.Gsm8kTool
    config: {type: native}
    tool_schema:
      type: function
      function:
        name: calc_gsm8k_reward
        description: Checks an answer.
        parameters:
          type: object
          properties:
            answer: {type: string, description: digits}
          required: [answer]
"""
SANDBOX_FUSION = """
tools:
  - class_name: verl.tools.sandbox_fusion_tools.SandboxFusionTool
    config:
      sandbox_fusion_url: URL/run_code
      num_workers: 10
      enable_global_rate_limit: true
      rate_limit: 5
      default_timeout: 20
      default_language: python
      memory_limit_mb: 512
      type: native
    tool_schema:
      type: function
      function:
        name: code_interpreter
        description: Runs code.
        parameters:
          type: object
          properties:
            code: {type: string, description: Python code}
          required: [code]
"""
GSM8K_INTERACTION = """
interaction:
  - name: gsm8k
    class_name: verl.interactions.gsm8k_interaction.Gsm8kInteraction
    config: {}
"""


def test_the_gsm8k_tool_file_runs(tmp_path):
    (tmp_path / "tools.yaml").write_text(GSM8K_TOOL)
    tools = load_tools(MultiTurnConfig(tool_config_path=tmp_path / "tools.yaml"))
    row = Task([], tools_kwargs={"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "72"}}})

    async def main():
        toolbox = Toolbox(tools)
        async with toolbox.session(row) as session:
            result = await session.call(ParsedCall("calc_gsm8k_reward", '{"answer": "72"}'))
        await toolbox.close()
        return result, session.rewards

    result, scores = asyncio.run(main())
    assert "reward=1.0" in result.text
    assert scores == {"calc_gsm8k_reward": 1.0}


def test_the_sandbox_fusion_tool_file_runs(tmp_path):
    file = tmp_path / "tools.yaml"

    async def main(tools):
        toolbox = Toolbox(tools)
        async with toolbox.session(Task([])) as session:
            result = await session.call(ParsedCall("code_interpreter", '{"code": "print(6 * 7)"}'))
        await toolbox.close()
        return result

    with sandbox_fusion() as (url, _):
        file.write_text(SANDBOX_FUSION.replace("URL", url.removesuffix("/run_code")))
        (tool,) = load_tools(MultiTurnConfig(tool_config_path=file))
        result = asyncio.run(main([tool]))
    assert tool.timeout_s == 20
    assert result.text == "42"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("default_language: python", "default_language: cpp", r"'config\.default_language'"),
        ("sandbox_fusion_url: URL/run_code", "", r"'config\.sandbox_fusion_url': Field required"),
        ("code: {", "text: {", "'tool_schema' needs the parameter 'code'"),
    ],
)
def test_mistakes_in_a_sandbox_fusion_tool_file(before, after, message, tmp_path):
    file = tmp_path / "tools.yaml"
    file.write_text(SANDBOX_FUSION.replace(before, after).replace("URL", "http://localhost:8080"))
    with pytest.raises(ConfigError, match=message):
        load_tools(MultiTurnConfig(tool_config_path=file))


def test_the_gsm8k_interaction_file_runs(tmp_path):
    (tmp_path / "users.yaml").write_text(GSM8K_INTERACTION)
    users = load_interactions(tmp_path / "users.yaml")

    async def main():
        row = Task([], interaction_kwargs={"name": "gsm8k", "query": "How many?", "ground_truth": "72"})
        async with InteractionSession(users, row) as session:
            return await session.respond([{"role": "assistant", "content": "It is 72."}])

    answer = asyncio.run(main())
    assert (answer.done, answer.score) == (True, 1.0)


IMPORTS_VERL = """
from verl.{module} import {name}

class Own({name}):
    pass
"""


@pytest.mark.parametrize(
    ("module", "name"), [("tools.base_tool", "BaseTool"), ("interactions.base", "BaseInteraction")]
)
def test_a_users_file_that_imports_verl_is_told_what_to_import(module, name, tmp_path):
    (tmp_path / "own.py").write_text(IMPORTS_VERL.format(module=module, name=name))
    kind = "tools" if name == "BaseTool" else "interaction"
    file = tmp_path / "verl.yaml"
    file.write_text(f"{kind}: [{{class_name: '{tmp_path}/own.py:Own', config: {{}}}}]")
    with pytest.raises(AgentRLError, match=rf"No module named 'verl'.* import .*{name}.* from agentrl\."):
        load_tools(MultiTurnConfig(tool_config_path=file)) if kind == "tools" else load_interactions(file)


@pytest.mark.parametrize("name", REWARDS)
def test_reward_functions_are_built_in_rewards(name):
    assert rewards.is_builtin(name)
    assert rewards.get(name) is rewards.get(REWARDS[name])


def test_a_path_to_a_reward_of_verl_names_the_built_in_reward(capsys):
    assert reward_in_place_of("pkg://verl.utils.reward_score.geo3k") == "geo3k"
    assert reward_in_place_of("my/reward_score/gsm8k.py") is None
    words = ["model.path=none", "data.train_files=none.json"]
    path = "reward.custom_reward_function.path=/src/verl/utils/reward_score/math_dapo.py"
    assert main(["train", *words, path]) == 2
    assert "remove this key and set reward.name=math_dapo" in capsys.readouterr().err


@pytest.mark.parametrize("name", MANAGERS)
def test_reward_managers_are_known_by_their_class(name):
    keys = {"actor_rollout_ref.model.path": "m", "algorithm.adv_estimator": "grpo"}
    translated = translate(nested({**keys, "reward_model.reward_manager": name}))
    assert translated.values["reward.reward_manager.name"] == MANAGERS[name]
