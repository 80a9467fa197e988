"""Composition of the configuration from experiments, own folders and overrides."""

from __future__ import annotations

import shutil

import pytest

from agentrl.cli.compose import compose_config, configs_dir
from agentrl.errors import ConfigError


def add(folder, name, text):
    (folder / "experiment").mkdir(exist_ok=True)
    (folder / f"experiment/{name}.yaml").write_text(f"# @package _global_\n{text}")


def test_an_own_experiment_replaces_one_of_agentrl_with_its_name(tmp_path):
    add(tmp_path, "calculator", "defaults: [gsm8k_tool, _self_]\nrollout: {n: 7}\n")
    assert compose_config(["+experiment=calculator"], config_dir=tmp_path).group_size == 7
    assert compose_config(["+experiment=gsm8k_tool"], config_dir=tmp_path).group_size != 7


def test_folders_may_have_any_name(tmp_path, monkeypatch):
    """Also the folder in which agentrl is installed."""
    own, installed = tmp_path / "my (own), x=1's", tmp_path / "agentrl [1], {2}"
    own.mkdir()
    shutil.copytree(configs_dir(), installed)
    monkeypatch.setattr("agentrl.cli.compose.configs_dir", lambda: installed)
    add(own, "mine", "defaults: [gsm8k_tool, _self_]\nrollout: {n: 7}\n")
    assert compose_config(["+experiment=mine"], config_dir=own).group_size == 7
    (own / "run.yaml").write_text("defaults: [experiment/mine, _self_]\nrollout.n: 5\n")
    assert compose_config([], file=own / "run.yaml").group_size == 5


def test_an_experiment_that_starts_from_itself_is_refused(tmp_path):
    add(tmp_path, "mine", "defaults: [mine, _self_]\n")
    with pytest.raises(ConfigError, match="leads back to this experiment"):
        compose_config(["+experiment=mine"], config_dir=tmp_path)
