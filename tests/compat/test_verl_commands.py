"""Real commands of verl users: which keys are used, ignored with a notice, or refused."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path

import pytest

from agentrl.algos.algorithm_options import policy_loss_options
from agentrl.algos.build import build_algorithm
from agentrl.cli.verl.overrides import read_verl, verl_config
from agentrl.compat.verl.keys.table import PPO
from agentrl.config.rules.combinations import check_training
from agentrl.errors import ConfigError

IN_USE = Path(__file__).with_name("verl_keys_in_use.txt")  # keys of verl's example scripts and default configurations

GRPO = """
algorithm.adv_estimator=grpo data.train_files=$HOME/gsm8k/train.parquet data.val_files=$HOME/gsm8k/test.parquet
data.train_batch_size=1024 data.max_prompt_length=512 data.max_response_length=1024 data.filter_overlong_prompts=True
data.truncation='error' actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.model.use_remove_padding=True
actor_rollout_ref.model.enable_gradient_checkpointing=True actor_rollout_ref.actor.optim.lr=1e-6
actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32
actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.001
actor_rollout_ref.actor.kl_loss_type=low_var_kl actor_rollout_ref.actor.entropy_coeff=0
actor_rollout_ref.actor.fsdp_config.param_offload=False actor_rollout_ref.actor.fsdp_config.optimizer_offload=False
actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32 actor_rollout_ref.rollout.tensor_model_parallel_size=1
actor_rollout_ref.rollout.gpu_memory_utilization=0.6 actor_rollout_ref.rollout.n=5
actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=32 actor_rollout_ref.ref.fsdp_config.param_offload=True
algorithm.use_kl_in_reward=False trainer.critic_warmup=0 trainer.logger='["console","wandb"]' trainer.n_gpus_per_node=1
trainer.nnodes=1 trainer.save_freq=20 trainer.test_freq=5 trainer.total_epochs=15
"""
TOOLS = """
data.return_raw_chat=True actor_rollout_ref.rollout.mode=async actor_rollout_ref.rollout.multi_turn.enable=True
actor_rollout_ref.rollout.multi_turn.tool_config_path=tools.yaml actor_rollout_ref.rollout.multi_turn.format=hermes
actor_rollout_ref.rollout.multi_turn.max_user_turns=8 actor_rollout_ref.rollout.multi_turn.max_assistant_turns=8
actor_rollout_ref.rollout.multi_turn.max_parallel_calls=2 actor_rollout_ref.rollout.agent.num_workers=8
"""
DAPO = """
actor_rollout_ref.actor.clip_ratio_low=0.2 actor_rollout_ref.actor.clip_ratio_high=0.28
actor_rollout_ref.actor.clip_ratio_c=10.0 actor_rollout_ref.actor.loss_agg_mode=token-mean
actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=22528
actor_rollout_ref.actor.optim.lr_warmup_steps=10 actor_rollout_ref.actor.optim.weight_decay=0.1
actor_rollout_ref.actor.grad_clip=1.0 actor_rollout_ref.rollout.val_kwargs.temperature=1.0
actor_rollout_ref.rollout.val_kwargs.top_p=0.7 actor_rollout_ref.rollout.val_kwargs.do_sample=True
data.truncation=left data.gen_batch_size=1536 algorithm.filter_groups.enable=True algorithm.filter_groups.metric=acc
algorithm.filter_groups.max_num_gen_batches=10 reward_model.reward_manager=dapo
reward_model.overlong_buffer.enable=True reward_model.overlong_buffer.len=512
reward_model.overlong_buffer.penalty_factor=0.5
"""
PPO_CRITIC = """
critic.model.path=Qwen/Qwen3-8B critic.optim.lr=1e-5 critic.optim.lr_warmup_steps=5 critic.strategy=fsdp
critic.model.use_remove_padding=True critic.model.enable_gradient_checkpointing=True critic.enable=null
critic.ppo_micro_batch_size_per_gpu=32 critic.model.fsdp_config.param_offload=True critic.cliprange_value=0.5
critic.fsdp.optimizer_offload=False trainer.critic_warmup=10
"""
LORA = """
actor_rollout_ref.model.lora_rank=64 actor_rollout_ref.model.lora_alpha=32
actor_rollout_ref.model.target_modules=all-linear actor_rollout_ref.rollout.load_format=safetensors
actor_rollout_ref.rollout.layered_summon=True actor_rollout_ref.model.use_shm=True
"""
MEGATRON = """
actor_rollout_ref.actor.strategy=megatron actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2
actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2 actor_rollout_ref.ref.megatron.param_offload=True
actor_rollout_ref.actor.optim.lr_decay_style=constant actor_rollout_ref.actor.megatron.param_offload=True
"""


def config_of(*commands: str):
    said = [word.replace("$HOME", "/home/me") for command in commands for word in shlex.split(command)]
    return verl_config(read_verl(said), partial(check_training, groups_of_one=True))


def refused(*commands: str) -> set[str]:
    """The keys for which a command is refused."""
    with pytest.raises(ConfigError) as error:
        config_of(*commands)
    return {line.split("'")[1].partition("=")[0] for line in str(error.value).splitlines()}


def test_every_verl_key_is_mapped_ignored_or_refused():
    assert [key for key in IN_USE.read_text().split() if PPO.find(key) is None] == []


def test_verl_grpo_command_is_mapped():
    config = config_of(GRPO)
    assert (config.rollout.n, config.actor.use_kl_loss, config.data.filter_overlong_prompts) == (5, True, True)
    assert (config.actor.use_dynamic_bsz, config.actor.ppo_micro_batch_size_per_gpu) == (False, 32)
    assert (config.ref.param_offload, config.trainer.logger) == (True, ("console", "wandb", "jsonl"))


def test_tool_agent_runs_several_turns():
    config = config_of(GRPO, TOOLS)
    assert config.rollout.agent.default_agent_loop == "tool_agent"
    assert (config.rollout.multi_turn.max_assistant_turns, config.rollout.multi_turn.max_parallel_calls) == (8, 2)


def test_verl_ppo_command_is_mapped():
    config = config_of(GRPO, PPO_CRITIC, "algorithm.adv_estimator=gae actor_rollout_ref.rollout.n=1")
    assert (config.algorithm.name, config.loss_name, config.aggregation) == ("gae", "vanilla", "token-mean")
    critic = config.critic
    assert (critic.path, critic.optim.lr, critic.optim.lr_warmup_steps) == ("Qwen/Qwen3-8B", 1e-5, 20)
    assert (critic.cliprange_value, critic.grad_clip, critic.param_offload) == (0.5, 1.0, True)
    assert config.trainer.critic_warmup == 9
    assert build_algorithm(config).needs == {"values", "ref_logprobs"}  # because of its KL loss


def test_verl_dapo_command_is_mapped():
    config = config_of(GRPO, DAPO)
    assert (config.actor.clip_high, config.data.truncation, config.actor.ppo_micro_batch_size_per_gpu) == (
        0.28,
        "left",
        None,
    )
    assert config.actor.optim.lr_warmup_steps == 40  # ten steps of four updates
    groups = config.algorithm.filter_groups
    assert (groups.enable, groups.metric, groups.max_num_gen_batches) == (True, "acc", 10)
    overlong = config.reward.overlong_buffer
    assert (overlong.enable, overlong.len, overlong.penalty_factor) == (True, 512, 0.5)


@pytest.mark.parametrize(
    "name", ["rloo", "remax", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "opo", "grpo_passk", "gdpo"]
)
def test_verl_commands_of_other_estimators_are_mapped(name):
    config = config_of(GRPO, PPO_CRITIC, f"algorithm.adv_estimator={name} trainer.critic_warmup=0")
    assert (config.algorithm.name, config.algorithm.adv_estimator, config.loss_name) == (name, None, "vanilla")
    build_algorithm(config)


def test_verl_gspo_command_is_mapped():
    config = config_of(
        GRPO,
        "actor_rollout_ref.actor.policy_loss.loss_mode=gspo actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean",
        "actor_rollout_ref.actor.clip_ratio_low=0.0003 actor_rollout_ref.actor.clip_ratio_high=0.0004",
    )
    assert (config.algorithm.name, config.actor.policy_loss.loss_mode, config.actor.loss_agg_mode) == (
        "gspo",
        None,
        None,
    )
    assert policy_loss_options("gspo", config.actor) == {"clip_ratio_low": 0.0003, "clip_ratio_high": 0.0004}


def test_verl_lora_command_is_mapped():
    config = config_of(GRPO, LORA)
    assert (config.model.lora_rank, config.model.lora_alpha, config.model.target_modules) == (64, 32, ("all-linear",))
    by_short_name = config_of(GRPO, "+actor.lora.rank=64 +actor.lora.alpha=32")
    assert (by_short_name.model.lora_rank, by_short_name.model.lora_alpha) == (64, 32)


@pytest.mark.usefixtures("megatron")
def test_megatron():
    config = config_of(GRPO, MEGATRON, "trainer.n_gpus_per_node=4")
    layout = config.actor.megatron
    assert (config.actor.backend, layout.tensor_model_parallel_size, layout.pipeline_model_parallel_size) == (
        "megatron",
        2,
        2,
    )
    assert (config.actor.param_offload, config.ref.param_offload, config.model.dtype) == (True, True, "bfloat16")


def test_verl_commands_for_other_engines_are_refused():
    cluster = "trainer.n_gpus_per_node=8 trainer.nnodes=2 actor_rollout_ref.rollout.tensor_model_parallel_size=2"
    refused_keys = {"actor_rollout_ref.rollout.name"}
    assert refused(GRPO, cluster, "actor_rollout_ref.rollout.name=vllm") == refused_keys


def test_a_configuration_that_verl_wrote_is_read(tmp_path):
    """A saved verl configuration sets every key, names its classes, and has interpolations."""
    (tmp_path / "full.yaml").write_text(
        "algorithm: {_target_: verl.trainer.config.AlgoConfig, adv_estimator: grpo}\n"
        "data: {train_files: x.parquet}\n"
        "actor_rollout_ref:\n"
        "  model: {_target_: verl.workers.config.HFModelConfig, path: m}\n"
        "  actor: {profiler: {_target_: verl.P, tool_config: {torch: {contents: [cpu]}}}}\n"
        "  rollout: {n: 2, profiler: {tool_config: '${oc.select:actor_rollout_ref.actor.profiler.tool_config,null}'}}\n"
    )
    config = verl_config(read_verl([], tmp_path, "full"), check_training)
    assert (config.rollout.n, config.model.path) == (2, "m")
    with pytest.raises(ConfigError, match=r"unknown key 'algorithm\._target_'"):
        verl_config(read_verl(["algorithm._target_=my.Algorithm"], tmp_path, "full"), check_training)
