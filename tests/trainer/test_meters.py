"""Converts counters since the start of a run into counts per step."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.engines.base import GenerateRequest
from agentrl.engines.scripted import ScriptedEngine
from agentrl.trainer.meters import EngineMeter, ToolMeter


def test_counts_are_of_one_step_and_shares_of_its_tokens() -> None:
    """100 tokens of context, 40 of them cached, before the meter was made; then 60 of 80."""
    now = {"prompt_tokens": 100.0, "cached_tokens": 40.0, "kv_tokens": 7.0}
    meter = EngineMeter(lambda: dict(now))
    now |= {"prompt_tokens": 180.0, "cached_tokens": 100.0, "kv_tokens": 9.0}
    assert meter() == {"engine/prompt_tokens": 80.0, "engine/cached_tokens": 60.0, "engine/cached_share": 0.75}
    assert meter() == {"engine/prompt_tokens": 0.0, "engine/cached_tokens": 0.0}  # without tokens there is no share


def test_gauges_are_reported_unchanged() -> None:
    now = {"num_restarts": 0.0, "replicas_ready": 2.0, "later_prompt_tokens": 0.0, "later_cached_tokens": 0.0}
    meter = EngineMeter(lambda: dict(now))
    now |= {"num_restarts": 1.0, "replicas_ready": 1.0, "later_prompt_tokens": 8.0, "later_cached_tokens": 6.0}
    step = meter()
    assert (step["engine/num_restarts"], step["engine/replicas_ready"]) == (1.0, 1.0)
    assert step["engine/later_cached_share"] == pytest.approx(0.75)


def test_changed_share_is_relative_to_the_last_sent_weights() -> None:
    now = {"weight_sent_bytes": 100.0, "weight_compare_s": 1.0}
    meter = EngineMeter(lambda: dict(now))
    now |= {"weight_sent_bytes": 130.0, "weight_compare_s": 1.5, "weight_changed_share": 0.02}
    sent = {"engine/weight_sent_bytes": 30.0, "engine/weight_compare_s": 0.5, "engine/weight_changed_share": 0.02}
    assert meter() == sent


def test_a_real_engines_counters_are_found() -> None:
    engine = ScriptedEngine([[1, 2, 3]])
    meter = EngineMeter(engine.metrics)
    asyncio.run(engine.generate(GenerateRequest([5, 6])))
    step = meter()
    assert (step["engine/prompt_tokens"], step["engine/sampled_tokens"]) == (2.0, 3.0)


def test_tools_are_counted_per_step_and_their_cost_since_the_start() -> None:
    now = {"abandoned_calls": 1.0, "replaced_loops": 1.0, "sandboxes_started": 3.0, "sandbox_cost_usd": 0.5}
    meter = ToolMeter(lambda: dict(now))
    now |= {"abandoned_calls": 2.0, "sandboxes_started": 5.0, "sandbox_cost_usd": 0.75}
    assert meter() == {
        "tools/abandoned_calls": 2.0,
        "tools/replaced_loops": 0.0,
        "tools/sandboxes_started": 2.0,
        "tools/sandbox_cost_usd": 0.75,
    }
    assert meter()["tools/sandboxes_started"] == 0.0
