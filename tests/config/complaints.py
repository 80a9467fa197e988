"""What the rules say of a configuration."""

from __future__ import annotations

from typing import Any

from agentrl.config.rules.combinations import check_rules, check_training
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError


def complaint(**sections: dict[str, Any]) -> str:  # Any: whatever a key holds
    base = {"data": {"train_files": ["a.jsonl"], "train_batch_size": 8}, "rollout": {"n": 2}}
    config = RunConfig.model_validate({"model": {"path": "m"}, **base, **sections})
    try:
        check_rules(config)
        check_training(config)
    except ConfigError as error:
        return str(error)
    return ""
