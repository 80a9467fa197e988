"""Which devices a plan has, what a configuration uses of them, and the sizes of servers that run already."""

from __future__ import annotations

import pytest

from agentrl.cli.compose import compose_config
from agentrl.config import RunConfig
from agentrl.errors import ConfigError, Kind
from agentrl.plan import devices
from agentrl.plan.devices import is_divided, placed, refuse_huge, too_many
from agentrl.plan.hardware import parse_fleet
from agentrl.plan.layout import num_used, servers_of

MODEL = "model.path=x"
URLS = ("rollout.engine=sglang", "rollout.sglang.urls=[http://a:1,http://b:1]", "trainer.n_gpus_per_node=8")


def config(*overrides: str) -> RunConfig:
    return compose_config([MODEL, *overrides])


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(devices, "gpu_name", lambda: None)
    monkeypatch.setattr(devices, "gpu_memory", lambda: None)


def test_without_a_number_the_configuration_tells_it():
    fleet, _ = placed("h100", compose_config(["+experiment=qwen3_30b_a3b"]))
    assert str(fleet) == "64xH100"


@pytest.mark.parametrize(
    ("resources", "expected"),
    [("{h200: 8}", "2xH200"), ("{accelerator_type\\:A100: 0.001}", "2xA100"), ("{rack: 1, rtx-4090: 1}", "2xRTX4090")],
)
def test_resources_of_the_cluster_name_the_device(resources, expected):
    of_run = config("trainer.n_gpus_per_node=1", "trainer.nnodes=2", f"+cluster.trainer_resources={resources}")
    assert str(placed(None, of_run)[0]) == expected


def test_the_processor_the_run_and_this_machine_name_the_device(monkeypatch):
    assert str(placed(None, config("actor.device=cpu"))[0]) == "1xCPU"
    assert str(placed(None, config(), "NVIDIA H200")[0]) == "1xH200"
    monkeypatch.setattr(devices, "gpu_name", lambda: "NVIDIA GeForce RTX 4090")
    assert str(placed(None, config())[0]) == "1xRTX4090"


def test_a_gpu_with_another_memory_than_its_file_is_refused(monkeypatch):
    monkeypatch.setattr(devices, "gpu_name", lambda: "NVIDIA A100-SXM4-40GB")
    monkeypatch.setattr(devices, "gpu_memory", lambda: 40960 * 2**20)
    with pytest.raises(ConfigError, match="40 GiB"):
        placed(None, config())
    monkeypatch.setattr(devices, "gpu_memory", lambda: 81920 * 2**20)
    assert str(placed(None, config())[0]) == "1xA100"


def test_processors_of_a_cluster_are_no_device(monkeypatch):
    monkeypatch.setattr(devices, "gpu_name", lambda: "NVIDIA H200")
    for resources, expected in (("{CPU: 16}", "2xH200"), ("{CPU: 16, h100: 1}", "2xH100")):
        found = config("trainer.n_gpus_per_node=1", "trainer.nnodes=2", f"+cluster.trainer_resources={resources}")
        assert str(placed(None, found)[0]) == expected


@pytest.mark.parametrize(("text", "tensor"), [("24xh100", 4), ("12xh100", 1)])
def test_pipeline_stages_of_servers_share_their_devices(text, tensor):
    fleet, found = placed(text, config(*URLS, "rollout.sglang.server_args={pp_size: 2}"))
    assert (servers_of(found).tensor, servers_of(found).pipeline) == (tensor, 2)
    assert num_used(found) == fleet.num_devices


def test_pipeline_stages_that_leave_a_remainder_are_refused():
    with pytest.raises(ConfigError, match="2 pipeline stages"):
        placed("14xh100", config(*URLS, "rollout.sglang.server_args={pp_size: 2}"))


def test_what_is_missing_is_named():
    with pytest.raises(ConfigError, match="--gpus 2xH100"):
        placed(None, config("trainer.n_gpus_per_node=2"))


def test_servers_that_run_already_get_what_training_leaves_over():
    fleet, found = placed("24xh100", config(*URLS))
    assert (servers_of(found).tensor, num_used(found)) == (8, 24)
    assert too_many(found, fleet) is None


@pytest.mark.parametrize("text", ["h100", "8xh100", "9xh100", "11xh100", "4xh100"])
def test_sizes_that_nothing_tells_are_asked_for(text):
    with pytest.raises(ConfigError) as caught:
        placed(text, config(*URLS))
    assert [(each.key, each.kind) for each in caught.value.problems] == [("rollout.sglang.server_args", Kind.MISSING)]


@pytest.mark.slow
def test_stated_sizes_are_counted():
    fleet, found = placed("h100", config(*URLS, "rollout.sglang.server_args={tp_size: 16}"))
    assert (fleet.num_devices, num_used(found)) == (40, 40)
    assert "40 devices" in (too_many(found, parse_fleet("32xh100")) or "")


@pytest.mark.parametrize("name", ["deepseek_v3", "glm_4_5", "qwen3_8b"])
def test_the_shipped_experiments_state_all_sizes(name):
    fleet, found = placed("h100", compose_config([f"+experiment={name}"]))
    assert fleet.num_devices == num_used(found) == {"deepseek_v3": 320, "glm_4_5": 192, "qwen3_8b": 8}[name]


def test_only_several_gpus_of_a_run_with_rollouts_are_divided():
    assert is_divided(config(), parse_fleet("8xh100"))
    assert not is_divided(config(), parse_fleet("1xh100"))
    assert not is_divided(config(), parse_fleet("8xcpu"))
    assert not is_divided(config("algorithm.name=sft"), parse_fleet("8xh100"))


@pytest.mark.parametrize("key", ["data.train_batch_size", "rollout.n", "trainer.max_staleness", "trainer.nnodes"])
def test_what_would_take_hours_is_refused(key):
    with pytest.raises(ConfigError):
        refuse_huge(config(f"{key}=1000000000"))
