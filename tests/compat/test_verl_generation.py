"""verl's keys for generating and scoring responses: every key is mapped, ignored with a notice, or refused."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from agentrl.cli.generate import for_generation, read_verl_config
from agentrl.cli.main import parse
from agentrl.compat.verl.keys.evaluation import EVALUATION
from agentrl.compat.verl.keys.generation import GENERATION, SERVER, generation_table
from agentrl.compat.verl.keys.rows import Hint, Mapped
from agentrl.compat.verl.keys.table import PPO, own_keys
from agentrl.config import RunConfig
from agentrl.config.rules.combinations import check_generation
from agentrl.errors import ConfigError

HERE = Path(__file__).parent
GENERATE = """
trainer.nnodes=1 trainer.n_gpus_per_node=1 data.path=in.parquet data.prompt_key=prompt data.n_samples=4
data.output_path=out.parquet model.path=m rollout.temperature=1.0 rollout.top_k=50 rollout.top_p=0.7
rollout.prompt_length=2048 rollout.response_length=1024 rollout.tensor_model_parallel_size=1
rollout.gpu_memory_utilization=0.8
"""
SERVE = """
trainer.nnodes=1 trainer.n_gpus_per_node=1 actor_rollout_ref.model.path=m data.train_files="['in.parquet']"
data.prompt_key=prompt +data.output_path=out.parquet actor_rollout_ref.rollout.n=4 actor_rollout_ref.rollout.name=hf
actor_rollout_ref.rollout.temperature=0.6 actor_rollout_ref.rollout.top_p=0.95
actor_rollout_ref.rollout.prompt_length=2048 actor_rollout_ref.rollout.response_length=1024
actor_rollout_ref.rollout.tensor_model_parallel_size=1 actor_rollout_ref.actor.strategy=megatron
"""


def config_of(*commands: str) -> RunConfig:
    """The configuration that a command would generate with."""
    words = [word for command in commands for word in shlex.split(command)]
    return for_generation(read_verl_config(parse(["generate", "--verl", *words]), check_generation))


@pytest.mark.parametrize(
    ("table", "names"),
    [
        (GENERATION, "verl_generation_keys.txt"),
        (SERVER, "verl_keys_in_use.txt"),
        (EVALUATION, "verl_evaluation_keys.txt"),
    ],
)
def test_every_key_of_verls_files_has_a_row(table, names):
    keys = (HERE / names).read_text().split()
    assert keys
    assert [key for key in keys if table.find(key) is None] == []


@pytest.mark.parametrize("table", [GENERATION, SERVER, EVALUATION])
def test_verl_generation_keys_are_unique_and_map_to_existing_keys_or_flags(table):
    assert len({row.key for row in table.rows}) == len(table.rows)
    targets = {target for row in table.rows if isinstance(row, Mapped) for target in row.names}
    assert {target for target in targets - own_keys() if not target.startswith("--")} == set()


def test_older_command_line_keeps_its_meaning():
    config = config_of(GENERATE)
    rollout, data = config.rollout, config.data
    assert (rollout.n, rollout.temperature, rollout.top_k, rollout.top_p) == (4, 1.0, 50, 0.7)
    assert (data.train_files, data.output_path, data.train_batch_size) == (("in.parquet",), Path("out.parquet"), 128)
    assert (data.max_prompt_length, data.max_response_length, data.shuffle) == (2048, 1024, False)
    assert (config.reward.name, config.trainer.mode, config.trainer.run_dir) == ("none", "rollout_only", Path("out"))


def test_missing_generation_options_have_verls_defaults():
    config = config_of("data.path=in.parquet model.path=m")
    rollout = config.rollout
    assert (rollout.n, rollout.temperature, rollout.top_k, rollout.top_p, rollout.dtype) == (
        5,
        1.0,
        50,
        0.7,
        "bfloat16",
    )
    assert (config.data.max_prompt_length, config.data.max_response_length) == (1536, 512)
    assert config.trainer.run_dir == Path("outputs/gsm8k")


def test_the_servers_command_has_the_defaults_of_the_trainer():
    config = config_of(SERVE)
    rollout, data = config.rollout, config.data
    assert (rollout.n, rollout.temperature, rollout.top_k, rollout.top_p) == (4, 0.6, -1, 0.95)
    assert (data.train_files, data.output_path, data.shuffle) == (("in.parquet",), Path("out.parquet"), False)
    assert (config.data.max_prompt_length, config.data.max_response_length) == (2048, 1024)
    assert (config.reward.name, config.trainer.total_epochs) == ("none", 1)


def test_trainer_keys_are_ignored_with_a_notice(capsys):
    config_of(SERVE, "trainer.total_epochs=30 algorithm.adv_estimator=gae critic.optim.lr=1e-5 data.shuffle=True")
    (told,) = [line for line in capsys.readouterr().err.splitlines() if "nothing is trained" in line]
    for key in (
        "actor_rollout_ref.actor.strategy",
        "trainer.total_epochs",
        "algorithm.adv_estimator",
        "critic.optim.lr",
    ):
        assert f"'{key}'" in told


def test_key_of_the_trainer_selects_the_server_command():
    assert generation_table(["data.path", "rollout.n"]) is GENERATION
    assert generation_table(["data.train_files"]) is generation_table([], "ppo_trainer") is SERVER
    assert PPO.find("data.output_path") is not None  # a key of agentrl


@pytest.mark.parametrize(
    ("said", "key", "value"),
    [
        ("rollout.top_k=0", "rollout.top_k", -1),
        ("rollout.do_sample=False data.n_samples=1", "rollout.temperature", 0.0),
        ("rollout.temperature=0 data.n_samples=1", "rollout.top_k", -1),
        ("custom_reward_function.path=r.py", "reward.name", "auto"),
        ("reward.name=gsm8k", "reward.name", "gsm8k"),
        ("trainer.default_local_dir=runs/x", "trainer.run_dir", Path("runs/x")),
        ("rollout.deterministic=true", "rollout.deterministic", True),
        ("data.trust_remote_code=True", "model.trust_remote_code", True),
        ("rollout.agent.default_agent_loop=tool_agent", "rollout.agent.default_agent_loop", "tool_agent"),
    ],
)
def test_values_are_translated(said, key, value):
    found: object = config_of(GENERATE, said)
    for name in key.split("."):
        found = getattr(found, name)
    assert found == value


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ("data.n_sample=3", "did you mean 'data.n_samples'?"),
        ("rollout.n=4", "data.n_samples sets the number of responses"),
        ("trainer.n_gpus_per_node=8", "set it to 1"),
        ("rollout.name=vllm", "set actor_rollout_ref.rollout.name to sglang"),
        ("rollout.temperature=0", "'data.n_samples' above 1 repeats the same greedy rollout"),
        ("data.output_path=out.csv", "'data.output_path' must name a Parquet file"),
        ("rollout.ignore_eos=True", "remove it"),
    ],
)
def test_unsupported_verl_generation_options_are_one_line_errors(said, complaint):
    with pytest.raises(ConfigError) as error:
        config_of(GENERATE, said)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_yaml_file_may_extend_verls_yaml(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "defaults: [generation, _self_]\nmodel: {path: m}\nactor: {model: '${model}'}\n"
    )
    options = parse(["generate", "--verl", "--config-path", str(tmp_path), "--config-name", "mine", "data.path=x.json"])
    assert read_verl_config(options, check_generation).model.path == "m"


def test_evaluation_ignores_keys_of_verls_cluster():
    assert {row.key for row in EVALUATION.rows if isinstance(row, Hint)} >= {"ray_kwargs.*"}
