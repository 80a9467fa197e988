"""Data options without effect are refused by name."""

from __future__ import annotations

import pytest

from agentrl.config import validate_config
from agentrl.errors import ConfigError


def check(data, **sections):
    return validate_config({"model": {"path": "m"}, "data": data, **sections})


@pytest.mark.parametrize(
    ("data", "sections", "complaint"),
    [
        ({"curriculum": {"by": "level", "target": 0.3}}, {}, "'data.curriculum.target' has no effect without 'data.c"),
        ({"curriculum": {"descending": True}}, {}, "'data.curriculum.descending' has no effect without a column in"),
        ({"curriculum": {"by": "pass_rate", "values": ["a"]}}, {}, "'data.curriculum.values' has no effect without"),
        ({"online": {"share": 0.25}}, {}, "'data.online.share' has no effect without 'data.online.max_tasks' above 0"),
        ({"custom_cls": {"path": "a.py"}}, {}, "'data.custom_cls': set both path"),
        (
            {"custom_cls": {"path": "a.py", "name": "A"}, "dataset_weights": [1, 2], "train_files": ["a", "b"]},
            {},
            "'data.dataset_weights' has no effect without the built-in datasets",
        ),
        ({"online": {"max_tasks": 3}}, {"algorithm": {"name": "sft"}}, "'data.online' has no effect without rollouts"),
        ({"curriculum": {"by": "level"}}, {"algorithm": {"name": "dpo"}}, "'data.curriculum' has no effect without ro"),
        (
            {"curriculum": {"by": "pass_rate"}},
            {"trainer": {"mode": "rollout_only"}},
            "'data.curriculum' has no effect without 'trainer.mode=train'",
        ),
    ],
)
def test_options_without_effect_are_refused(data, sections, complaint):
    with pytest.raises(ConfigError) as caught:
        check(data, **sections)
    assert complaint in str(caught.value)


def test_supported_options_pass():
    config = check(
        {"curriculum": {"by": "pass_rate", "target": 0.3}, "online": {"max_tasks": 8, "share": 0.25}},
        trainer={"max_staleness": 1},
    )
    assert config.data.curriculum.floor == 0.1
    assert check({"curriculum": {"by": "level"}}, trainer={"mode": "rollout_only"}).data.online.max_tasks == 0
