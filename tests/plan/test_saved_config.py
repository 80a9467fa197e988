"""A saved run's configuration is hostile input: sizes and built-in names are used, nothing is executed."""

from __future__ import annotations

import json

import pytest
from planned_run import saved_run

from agentrl.errors import AgentRLError, ConfigError
from agentrl.plan.layout import servers_of
from agentrl.plan.saved_config import config_of_run, device_of_run


def run_with(folder, values: dict[str, object]) -> str:
    return str(saved_run(folder, config=values))


def test_the_configuration_of_a_run_is_read_without_what_runs_code(tmp_path):
    assert config_of_run(str(saved_run(tmp_path))).data.train_batch_size > 0
    with pytest.raises(AgentRLError):
        config_of_run(str(tmp_path / "none"))


@pytest.mark.parametrize("name", ["tp_size", "--tp-size", "tp-size"])
def test_sizes_of_servers_are_kept_without_addresses_and_options(name, tmp_path):
    sglang = {"urls": ["http://secret:1", "http://secret:2"], "server_args": {name: 4, "tokenizer_path": "/etc"}}
    found = config_of_run(run_with(tmp_path, {"rollout": {"engine": "sglang", "sglang": sglang}}))
    assert (servers_of(found).replicas, servers_of(found).tensor) == (2, 4)
    assert "secret" not in str(found)
    assert found.rollout.sglang.server_args == {"tp_size": 4}


@pytest.mark.parametrize("engine", ["/tmp/evil.py:Engine", "os:system", 3, ["sglang"]])
def test_an_engine_of_somebody_else_is_not_used(engine, tmp_path):
    found = config_of_run(run_with(tmp_path, {"rollout": {"engine": engine}}))
    assert found.rollout.engine == "torch"


@pytest.mark.parametrize(
    "values",
    [
        {"rollout": "x", "model": [], "actor": 3},
        {"rollout": {"sglang": {"urls": {"a": 1}, "server_args": ["x"]}}},
        {"rollout": {"sglang": {"server_args": {"tp_size": "many", 3: 4}}}},
    ],
)
def test_values_of_wrong_kinds_are_left_out(values, tmp_path):
    assert servers_of(config_of_run(run_with(tmp_path, values))).devices == 1


def test_a_layout_that_divides_nothing_is_refused(tmp_path):
    values = {"actor": {"backend": "megatron", "megatron": {"pipeline_model_parallel_size": 10**8}}}
    with pytest.raises(ConfigError):
        config_of_run(run_with(tmp_path, values))


def test_the_device_of_a_run(tmp_path):
    run = saved_run(tmp_path)
    assert device_of_run(str(run)) is None
    for saved, expected in (({"devices": {"actor": "cpu"}}, "cpu"), ({"devices": {"actor": 3}}, None), ([], None)):
        (run / "environment.json").write_text(json.dumps(saved))
        assert device_of_run(str(run)) == expected
