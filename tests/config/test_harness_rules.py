"""Keys of harnesses and of agent loops: which need each other, and which do not work together."""

from __future__ import annotations

import pytest
from complaints import keys_and_kinds, problems_of

from agentrl.config.rollout import RolloutConfig
from agentrl.errors import Kind


def test_a_harness_chooses_its_agent_loop():
    assert RolloutConfig(harness="codex").agent_loop == "harness"
    assert problems_of(rollout={"n": 2, "harness": "codex"}) == []
    assert problems_of(rollout={"n": 2, "harness": "codex", "agent": {"default_agent_loop": "harness"}}) == []


def test_a_harness_and_its_agent_loop_need_each_other():
    loop = "rollout.agent.default_agent_loop"
    assert (loop, Kind.MISSING) in keys_and_kinds(problems_of(rollout={"agent": {"default_agent_loop": "harness"}}))
    other = {"harness": "codex", "agent": {"default_agent_loop": "tool_agent"}}
    assert ("rollout.harness", Kind.UNUSED) in keys_and_kinds(problems_of(rollout=other))


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("interaction_config_path", "users.yaml", Kind.CONFLICT),
        ("thinking", "strip", Kind.CONFLICT),
        ("max_tool_calls", 3, Kind.UNUSED),
        ("max_parallel_calls", 3, Kind.UNUSED),
        ("max_tool_response_length", 3, Kind.UNUSED),
        ("tool_response_truncate_side", "left", Kind.UNUSED),
    ],
)
def test_keys_of_agentrls_own_loops_do_not_work_with_a_harness(key, value, kind):
    found = problems_of(rollout={"n": 2, "harness": "codex", "multi_turn": {key: value}})
    assert (f"rollout.multi_turn.{key}", kind) in keys_and_kinds(found)
