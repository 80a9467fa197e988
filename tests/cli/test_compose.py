"""Composition of the configuration from experiments, own folders and overrides."""

from __future__ import annotations

import pytest

from agentrl.cli.compose import compose_config
from agentrl.errors import ConfigError


def add(folder, name, text):
    (folder / "experiment").mkdir(exist_ok=True)
    (folder / f"experiment/{name}.yaml").write_text(f"# @package _global_\n{text}")


def test_an_own_experiment_replaces_one_of_agentrl_with_its_name(tmp_path):
    add(tmp_path, "calculator", "defaults: [gsm8k_tool, _self_]\nrollout: {n: 7}\n")
    assert compose_config(["+experiment=calculator"], config_dir=tmp_path).group_size == 7
    assert compose_config(["+experiment=gsm8k_tool"], config_dir=tmp_path).group_size != 7


def test_an_experiment_that_starts_from_itself_is_refused(tmp_path):
    add(tmp_path, "mine", "defaults: [mine, _self_]\n")
    with pytest.raises(ConfigError, match="leads back to this experiment"):
        compose_config(["+experiment=mine"], config_dir=tmp_path)
