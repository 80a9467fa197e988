"""Replay takes code only from the command line, never from a saved run."""

from __future__ import annotations

import pytest
from replayed_runs import rewritten, with_config

from agentrl.errors import ConfigError
from agentrl.replay.base import Options, Replay
from agentrl.replay.saved_run import open_saved
from agentrl.replay.settings import refuse_code_of_rows, refuse_missing_code, replay_config
from agentrl.types.task import Task

EVIL = {
    "model": {"path": "m", "trust_remote_code": True, "attn_implementation": "owner/kernel"},
    "rollout": {
        "temperature": 0.5,
        "agent": {"default_agent_loop": "evil:Loop", "agent_loop_config_path": "evil.yaml"},
        "multi_turn": {"format": "evil:Parser", "function_tool_path": "evil.py", "max_user_turns": 3},
    },
}


def replay_of(saved_run, folder, config, **overrides):
    return Replay(
        open_saved(str(rewritten(saved_run, folder, provenance=with_config(**config)))), Options((), overrides)
    )


def test_keys_that_name_code_are_dropped_and_the_rest_is_kept(saved_run, tmp_path):
    config = replay_config(replay_of(saved_run, tmp_path, EVIL))
    assert (config.model.trust_remote_code, config.model.attn_implementation) == (False, "sdpa")
    assert (config.rollout.agent_loop, config.rollout.multi_turn.format) == ("single_turn_agent", "auto")
    assert config.rollout.agent.agent_loop_config_path is None
    assert config.rollout.multi_turn.function_tool_path is None
    assert (config.rollout.temperature, config.rollout.multi_turn.max_user_turns) == (0.5, 3)


def test_code_may_be_named_on_the_command_line(saved_run, tmp_path):
    said = {"model": {"attn_implementation": "eager"}, "rollout": {"multi_turn": {"function_tool_path": "mine.py"}}}
    config = replay_config(replay_of(saved_run, tmp_path, EVIL, **said))
    assert config.model.attn_implementation == "eager"
    assert str(config.rollout.multi_turn.function_tool_path) == "mine.py"


def test_built_in_names_are_accepted(saved_run, tmp_path):
    kept = {"model": {"path": "m"}, "rollout": {"agent": {"default_agent_loop": "react"}}}
    assert replay_config(replay_of(saved_run, tmp_path, kept)).rollout.agent.default_agent_loop == "react"


def test_missing_code_is_requested(saved_run, tmp_path):
    keys = ["model.trust_remote_code", "rollout.multi_turn.function_tool_path", "rollout.multi_turn.tool_config_path"]
    with pytest.raises(ConfigError) as refused:
        refuse_missing_code(replay_of(saved_run, tmp_path / "a", EVIL), keys)
    lines = str(refused.value).splitlines()
    assert [line.rpartition("add ")[2] for line in lines] == [
        "model.trust_remote_code=True",
        "rollout.multi_turn.function_tool_path=evil.py",
    ]
    said = {"model": {"trust_remote_code": False}, "rollout": {"multi_turn": {"function_tool_path": "mine.py"}}}
    refuse_missing_code(replay_of(saved_run, tmp_path / "b", EVIL, **said), keys)


@pytest.mark.parametrize(
    "field", [{"agent_name": "os:system"}, {"extra_info": {"tool_config": {"tool_format": "a:b"}}}]
)
def test_a_row_that_names_code_is_refused(saved_run, tmp_path, field):
    config = replay_config(replay_of(saved_run, tmp_path, EVIL))
    refuse_code_of_rows([Task([], agent_name="tool_agent_loop"), Task([])], config)
    with pytest.raises(ConfigError, match=r"row 7 \('u'\) names"):
        refuse_code_of_rows([Task([], index=7, uid="u", **field)], config)
