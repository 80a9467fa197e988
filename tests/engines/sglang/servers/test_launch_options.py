"""From a configuration to a server's command line and environment."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from sglang_server import save_tiny_model

from agentrl.config.model import ModelConfig
from agentrl.config.rollout import RolloutConfig
from agentrl.engines.sglang.servers.command import server_command, server_environment
from agentrl.engines.sglang.servers.options import server_options
from agentrl.engines.sglang.weights.delta import LOADER
from agentrl.engines.sglang.weights.server_loader import load
from agentrl.errors import ConfigError


@pytest.fixture(autouse=True)
def sglang_is_installed(monkeypatch):
    """Pretends that SGLang is installed; no test here starts a server."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("options"))


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def options(model_folder, index: int = 0, model: dict[str, object] | None = None, **rollout):
    """The options that are set, without defaults."""
    config = RolloutConfig(engine="sglang", **rollout)
    given = server_options(ModelConfig(path=str(model_folder), **(model or {})), config, 1000, index)
    return {key: value for key, value in given.items() if value is not None and value is not False}


def test_every_kind_of_value_becomes_an_argument():
    given = {"tp_size": 2, "mem-fraction-static": 0.8, "--quiet": True, "off": False, "none": None, "buckets": [1, 2]}
    arguments = server_command({**given, "lora": ["a=b", "c"], "limits": {"image": 3}}, 1234)[3:]
    assert arguments == [
        *("--tp-size", "2", "--mem-fraction-static", "0.8", "--quiet", "--buckets", "1", "2"),
        *("--lora", "a=b", "c", "--limits", '{"image": 3}'),
        *("--host", "127.0.0.1", "--port", "1234", "--weight-version", "0"),
    ]


def test_cpu_servers_have_memory_thread_and_idle_limits(model_folder):
    on_cpu = options(model_folder)
    assert on_cpu == {
        "model_path": str(model_folder),
        "dtype": "float32",  # sglang's auto would choose float16
        "enable_priority_scheduling": True,
        "disable_priority_preemption": True,
        "default_priority_value": 0,
        "device": "cpu",
        "max_total_tokens": 32768,
        "sleep_on_idle": True,
    }
    environment = server_environment(on_cpu, {"MINE": "1"})
    assert environment.items() >= {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "MINE": "1"}.items()
    assert server_environment(on_cpu, {"OMP_NUM_THREADS": "4"})["OMP_NUM_THREADS"] == "4"


def test_gpu_replicas_use_separate_gpus_and_float32_is_served_as_bfloat16(model_folder, gpu):
    args = {"tp_size": 2, "pp-size": 2, "base_gpu_id": 1}
    second = options(model_folder, 1, sglang={"server_args": args})
    assert (second["base_gpu_id"], second["tp_size"], second["dtype"]) == (5, 2, "bfloat16")
    assert "device" not in second
    assert "sleep_on_idle" not in second
    assert "SGLANG_CPU_OMP_THREADS_BIND" not in server_environment(second, {})


def test_keys_of_the_rollout_become_options(model_folder, gpu):
    keys = {"max_num_seqs": 7, "max_kv_tokens": 5000, "deterministic": True, "routed_experts": True, "dtype": "float16"}
    given = options(model_folder, sglang={"colocate": True}, model={"trust_remote_code": True}, **keys)
    assert (
        given.items()
        >= {
            "max_running_requests": 7,
            "max_total_tokens": 5000,
            "enable_deterministic_inference": True,
            "enable_return_routed_experts": True,
            "enable_memory_saver": True,
            "trust_remote_code": True,
            "dtype": "float16",
        }.items()
    )


def test_servers_that_get_differences_can_apply_them(model_folder):
    given = options(model_folder, weight_sync="delta")["custom_weight_loader"]
    module, _, function = given[0].rpartition(".")
    assert (given, getattr(importlib.import_module(module), function)) == ([LOADER], load)
    assert "custom_weight_loader" not in options(model_folder)


@pytest.mark.parametrize(("given", "limit"), [({}, None), ({"max_num_seqs": 128}, 128)])
def test_sglang_uses_its_own_limit_of_sequences_unless_one_is_given(model_folder, given, limit):
    assert options(model_folder, **given).get("max_running_requests") == limit


def test_options_of_the_user_override_defaults(model_folder):
    given = options(model_folder, sglang={"server_args": {"max-total-tokens": 64, "sleep_on_idle": False}})
    assert given["max_total_tokens"] == 64
    assert "sleep_on_idle" not in given


def test_the_base_of_an_adapter_is_served(tmp_path, model_folder):
    said = f'{{"peft_type": "LORA", "base_model_name_or_path": "{model_folder}"}}'
    (tmp_path / "adapter_config.json").write_text(said)
    assert options(tmp_path)["model_path"] == str(model_folder)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"dtype": "float16"}, r"server_args\.dtype: set rollout\.dtype instead"),
        ({"model-path": "x"}, r"server_args\.model_path: set model\.path instead"),
        ({"--port": 1}, r"server_args\.port: set rollout\.sglang\.urls"),
        ({"custom-weight-loader": ["m.f"]}, r"custom_weight_loader: set rollout\.weight_sync=delta instead"),
    ],
)
def test_options_that_agentrl_sets_itself_are_refused(model_folder, args, message):
    with pytest.raises(ConfigError, match=message):
        options(model_folder, sglang={"server_args": args})


def test_impossible_options_are_refused(model_folder, monkeypatch, gpu):
    with pytest.raises(ConfigError, match=r"server_args\.tp_size must be an integer, not 'two'"):
        options(model_folder, sglang={"server_args": {"tp_size": "two"}})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="colocate frees a GPU's memory"):
        options(model_folder, sglang={"colocate": True})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"sglang is not installed: pip install 'agentrl-train\[sglang\]'.*make sglang"
    ):
        options(model_folder)


def test_server_environment_has_no_rank_variables(monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_USE_AGENT_STORE", "RANKING"):
        monkeypatch.setenv(name, "1")
    environment = server_environment({}, {"WORLD_SIZE": "4"})
    assert {name for name in environment if "RANK" in name or "TORCHELASTIC" in name or "MASTER" in name} == {"RANKING"}
    assert environment["WORLD_SIZE"] == "4"
