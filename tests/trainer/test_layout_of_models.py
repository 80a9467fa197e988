"""A parallel layout is checked against each model's config.json before anything is loaded."""

from __future__ import annotations

import json

import pytest

from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.trainer.choices import choose

SHAPE = {"num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 4096}
STAGES = "'actor.megatron.pipeline_model_parallel_size=3' does not divide the 4 layers of"


@pytest.fixture
def configured(tmp_path, megatron):
    """Returns a configuration with three pipeline stages and a policy of four layers."""
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))

    def configured(**sections) -> RunConfig:
        actor = {"backend": "megatron", "megatron": {"pipeline_model_parallel_size": 3}}
        return RunConfig.model_validate({"model": {"path": str(tmp_path)}, "actor": actor, **sections})

    return configured


def test_the_layout_must_fit_the_policy(configured):
    with pytest.raises(ConfigError, match=f"{STAGES} 'model.path'"):
        choose(configured())


def test_the_layout_must_fit_the_reference_and_the_critic(configured, tmp_path):
    six = tmp_path / "six"
    six.mkdir()
    (six / "config.json").write_text(json.dumps({**SHAPE, "num_hidden_layers": 6}))
    for part in ("ref", "critic"):
        with pytest.raises(ConfigError, match=f"{STAGES} '{part}.path'"):
            choose(configured(**{"model": {"path": str(six)}, part: {"path": str(tmp_path)}}))
    choose(configured(model={"path": str(six)}))


def test_an_evaluation_does_not_use_the_layout(configured):
    choose(configured(), "eval")
    choose(configured(trainer={"mode": "rollout_only"}))
