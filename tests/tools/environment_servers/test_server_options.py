"""The value of `rollout.multi_turn.environment` for servers: its forms, and mistakes in it."""

from __future__ import annotations

import json
import os

import pytest

from agentrl.config import validate_config
from agentrl.config.paths import absolute
from agentrl.errors import ConfigError
from agentrl.tools.environment_servers.options import read_options, server_name
from agentrl.tools.environments.spec import check_environment, environment_name


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("openenv:http://localhost:8000", "openenv"),
        ("nemo_gym:https://node1/gym", "nemo_gym"),
        ("folder/game.yaml", "game"),
        ("game.yml", "game"),
    ],
)
def test_names_of_servers(target, name):
    assert server_name(target) == environment_name(target) == name


@pytest.mark.parametrize("target", ["world.py:World", "pkg.module:World", "pkg.openenv.World", "openenv"])
def test_classes_are_no_servers(target):
    assert server_name(target) is None


def test_the_short_form_has_the_defaults_of_the_file(tmp_path):
    (tmp_path / "game.yaml").write_text("openenv: http://localhost:8000/")
    assert read_options("openenv:http://localhost:8000") == read_options(f"{tmp_path}/game.yaml")


def test_values_of_the_environment_are_filled_in(tmp_path, monkeypatch):
    monkeypatch.setenv("GAME_PORT", "8123")
    (tmp_path / "game.yaml").write_text("openenv: http://localhost:${oc.env:GAME_PORT}")
    assert read_options(f"{tmp_path}/game.yaml").url == "http://localhost:8123"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({}, "expected the address of one server under 'openenv' or 'nemo_gym'"),
        ({"opnenv": "http://a:1"}, "did you mean 'openenv'?"),
        ({"openenv": "http://a:1", "nemo_gym": "http://a:1"}, "expected the address of one server"),
        ({"openenv": "http://a:1", "max_session": 2}, "unknown key 'max_session': did you mean 'max_sessions'?"),
        ({"openenv": "http://a:1", "max_sessions": 0}, "'max_sessions': Input should be greater than 0"),
        ({"openenv": "http://a:1", "reward": "mean"}, "'reward': Input should be 'sum' or 'last'"),
        ({"openenv": "localhost:8000"}, "'openenv': expected an address such as"),
        ({"openenv": "http://me:secret@a:1"}, "'openenv': expected an address without a password"),
        ({"nemo_gym": "http://a:1", "tools": "none.jsonl"}, "'tools': there is no file"),
        ({"nemo_gym": "http://a:1", "reward": "sum"}, "unknown key 'reward'"),
    ],
)
def test_mistakes_in_the_file(tmp_path, content, complaint):
    file = tmp_path / "game.yaml"
    file.write_text(json.dumps(content))
    with pytest.raises(ConfigError) as caught:
        check_environment(str(file))
    assert str(caught.value).startswith(f"{file}: ")
    assert complaint in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("opnenv:http://a:1", "did you mean 'openenv'?"),
        ("openenv:ws://a:1", "'openenv': expected an address such as"),
        ("none.yaml", "there is no file 'none.yaml'"),
    ],
)
def test_mistakes_in_the_value(target, complaint):
    with pytest.raises(ConfigError, match=complaint.replace("?", r"\?")):
        check_environment(target)


def test_the_path_of_the_file_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "game.yaml").write_text("openenv: http://a:1")
    for value, expected in (
        ("game.yaml", f"{tmp_path}{os.sep}game.yaml"),
        ("openenv:http://a:1", "openenv:http://a:1"),
    ):
        config = validate_config(
            {"model": {"path": "m"}, "rollout": {"multi_turn": {"environment": value}}, "trainer": {"mode": "val_only"}}
        )
        assert absolute(config).rollout.multi_turn.environment == expected
