"""Dynamic sampling and a moving reference are refused where they cannot work."""

from __future__ import annotations

import pytest

from agentrl.config import validate_config
from agentrl.config.rules.combinations import check_training
from agentrl.errors import ConfigError


def checked(**sections):
    given = {"model": {"path": "m"}, "data": {"train_files": ["t.jsonl"]}, "rollout": {"n": 2}}
    check_training(validate_config({**given, **sections}))


FILTER = {"algorithm": {"filter_groups": {"enable": True}}}
SYNC = {"ref": {"sync_steps": 4}, "actor": {"use_kl_loss": True}}


@pytest.mark.parametrize("sections", [FILTER, SYNC, {**SYNC, "ref": {"path": "other", "sync_steps": 4}}])
def test_valid_settings_pass(sections):
    checked(**sections)


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({**FILTER, "trainer": {"mode": "rollout_only"}}, "enable=true' has no effect without 'trainer.mode=train'"),
        (
            {**FILTER, "trainer": {"mode": "train_only", "saved_rollouts": "r"}},
            "'algorithm.filter_groups.enable=true' has no effect without 'trainer.mode=train'",
        ),
        (
            {"algorithm": {"name": "gae", "filter_groups": {"enable": True}}, "rollout": {"n": 1}},
            "would drop every group of one rollout: set 'rollout.n' to 2 or more",
        ),
        (
            {**SYNC, "model": {"path": "m", "lora_rank": 4}},
            "'ref.sync_steps' copies complete weights, but",
        ),
        (
            {
                "ref": {"path": "other", "sync_steps": 4},
                "actor": {"use_kl_loss": True, "freeze_modules": ["model.embed_tokens"]},
            },
            "'ref.sync_steps' copies only trained weights; with 'actor.freeze_modules' the other weights would",
        ),
    ],
)
def test_impossible_settings_are_refused(sections, told):
    with pytest.raises(ConfigError, match=told):
        checked(**sections)
