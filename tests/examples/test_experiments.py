"""Every shipped experiment composes to a valid training configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.cli.compose import compose_config, configs_dir
from agentrl.config.rules.combinations import check_training

ROOT = Path(__file__).parents[2]
EXPERIMENTS = sorted((configs_dir() / "experiment").glob("*.yaml"))


@pytest.mark.usefixtures("megatron")
@pytest.mark.one_in(4)
@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_experiment_is_valid_short_and_names_files_that_exist(path):
    config = compose_config([f"+experiment={path.stem}"])
    check_training(config)
    assert config.trainer.default_local_dir is None  # each command gets a new folder, unless the user names one
    assert len(path.read_text().splitlines()) <= 30
    multi_turn, reward = config.rollout.multi_turn, config.reward.custom_reward_function
    for file in (multi_turn.function_tool_path, multi_turn.tool_config_path, reward.path):
        assert file is None or (ROOT / file).is_file()
