"""verl's keys: which are mapped, ignored with a notice, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.compat.verl.keys.rows import Mapped
from agentrl.compat.verl.keys.table import PPO, own_keys
from agentrl.compat.verl.keys.translate import nested, translate
from agentrl.config import RunConfig, validate_config
from agentrl.errors import ConfigError

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
SGLANG = {f"{ROLLOUT}.name": "sglang"}
NEEDED = {"actor_rollout_ref.model.path": "m", "algorithm.adv_estimator": "grpo"}


def config_of(**keys: object) -> RunConfig:
    return validate_config(nested(translate(nested(NEEDED | keys)).values))


def notices_of(**keys: object) -> list[str]:
    return translate(nested(NEEDED | {f"{ROLLOUT}.n": 2} | keys)).lines()


def test_verl_keys_are_unique_and_map_to_existing_keys() -> None:
    assert len({row.key for row in PPO.rows}) == len(PPO.rows)
    targets = {target for row in PPO.rows if isinstance(row, Mapped) for target in row.names}
    assert targets <= own_keys()


def test_verls_asynchronous_trainers_are_known() -> None:
    """Keys that the YAML files of verl's asynchronous trainers add; unsupported keys give a reason."""
    names = (
        *("staleness_threshold", "trigger_parameter_sync_step", "require_batches", "partial_rollout"),
        *("use_trainer_do_validate", "use_dynamic_resource_scheduling", "dynamic_schedule_policy"),
        *("dynamic_schedule_deactivate_ratio", "dynamic_schedule_enable_rebalance", "concurrent_samples_per_replica"),
    )
    others = ("rollout.nnodes", "rollout.n_gpus_per_node", "rollout.n", "rollout.total_rollout_steps")
    more = ("data.gen_batch_size", f"{ROLLOUT}.standalone_gpu_memory_utilization", f"{ACTOR}.use_rollout_log_probs")
    keys = [*(f"async_training.{name}" for name in names), *others, *more]
    assert [key for key in keys if PPO.find(key) is None] == []


def test_several_devices_per_engine_need_sglang() -> None:
    sizes = {f"{ROLLOUT}.pipeline_model_parallel_size": 1, f"{ROLLOUT}.expert_parallel_size": "1"}
    (notice,) = notices_of(**sizes)
    assert "one device" in notice
    with pytest.raises(ConfigError, match=f"set it to 1, or use SGLang: {ROLLOUT}.name=sglang"):
        config_of(**sizes | {f"{ROLLOUT}.tensor_model_parallel_size": 2})


def test_missing_keys_have_verls_defaults() -> None:
    config = config_of()
    data, actor, rollout, trainer = config.data, config.actor, config.rollout, config.trainer
    assert (data.train_batch_size, data.max_prompt_length, data.max_response_length) == (1024, 512, 512)
    assert (actor.ppo_mini_batch_size, config.aggregation, actor.clip_low, actor.clip_high) == (
        256,
        "token-mean",
        0.2,
        0.2,
    )
    assert (actor.optim.lr, actor.optim.weight_decay, actor.use_kl_loss) == (1e-6, 0.01, False)
    assert (rollout.n, rollout.temperature, rollout.val_kwargs.do_sample) == (1, 1.0, False)
    assert (config.model.dtype, actor.autocast, rollout.dtype) == ("float32", "bfloat16", "bfloat16")
    assert (trainer.total_epochs, trainer.val_before_train, trainer.save_freq, trainer.test_freq) == (30, True, 0, 0)
    assert str(trainer.run_dir) == "outputs/gsm8k"


@pytest.mark.parametrize(
    ("given", "target", "value"),
    [
        ({"algorithm.group_size": 4}, "rollout.n", 4),
        ({"trainer.resume_mode": "resume_path"}, "trainer.resume_mode", "path"),
        ({"trainer.resume_from_path": "a/step-3"}, "trainer.resume_from_path", Path("a/step-3")),
        ({"trainer.resume_from_path": ""}, "trainer.resume_from_path", None),
        ({"trainer.max_actor_ckpt_to_keep": 3}, "trainer.max_checkpoints_to_keep", 3),
        ({"trainer.max_actor_ckpt_to_keep": 0}, "trainer.max_checkpoints_to_keep", None),
        ({"trainer.max_ckpt_to_keep": "-1"}, "trainer.max_checkpoints_to_keep", None),
        ({"algorithm.kl_penalty": 0.01}, "actor.kl_loss_coef", 0.01),
        ({"algorithm.kl_penalty": 0.01}, "actor.use_kl_loss", True),
        ({"algorithm.kl_penalty": "0.01"}, "actor.kl_loss_coef", 0.01),
        ({"algorithm.kl_penalty": 0}, "actor.use_kl_loss", False),
        ({"algorithm.kl_penalty": "kl"}, "actor.use_kl_loss", False),
        ({"algorithm.kl_penalty": "low_var_kl"}, "actor.use_kl_loss", False),
        ({"algorithm.norm_adv_by_std_in_grpo": False}, "algorithm.norm_adv_by_std_in_grpo", False),
        ({"data.train_files": "a"}, "data.train_files", ("a",)),
        ({"data.train_files": ["a", "b"], "data.dataset_weights": [1, 3]}, "data.dataset_weights", (1, 3)),
        *(({"data.truncation": side}, "data.truncation", side) for side in ("error", "left", "middle", "right")),
        ({"data.train_files": ["a", "b"]}, "data.train_files", ("a", "b")),
        (
            {"data.apply_chat_template_kwargs.enable_thinking": False},
            "data.apply_chat_template_kwargs",
            {"enable_thinking": False},
        ),
        (
            {"custom_reward_function.reward_kwargs.alpha": 2},
            "reward.custom_reward_function.reward_kwargs",
            {"alpha": 2},
        ),
        ({"trainer.logger": "console"}, "trainer.logger", ("console", "jsonl")),
        ({"trainer.logger": ["console", "swanlab", "file"]}, "trainer.logger", ("console", "jsonl")),
        ({"trainer.logger": ["tensorboard"]}, "trainer.logger", ("tensorboard", "jsonl")),
        ({"trainer.save_freq": 10}, "trainer.save_freq", 10),
        ({"trainer.val_only": True}, "trainer.mode", "val_only"),
        ({"trainer.val_only": False}, "trainer.mode", "train"),
        ({"trainer.default_local_dir": "x/y"}, "trainer.run_dir.name", "y"),
        ({"trainer.project_name": "p", "trainer.experiment_name": "e"}, "trainer.run_dir.name", "e"),
        ({}, "trainer.resume_mode", "disable"),
        ({"trainer.default_local_dir": "x/y"}, "trainer.resume_mode", "auto"),
        ({"trainer.experiment_name": None}, "trainer.experiment_name", "gsm8k"),
        ({f"{ROLLOUT}.agent_loop": "tool_agent"}, "rollout.agent.default_agent_loop", "tool_agent"),
        ({"rollout.agent_loop": "tool_agent"}, "rollout.agent.default_agent_loop", "tool_agent"),
        ({f"{ROLLOUT}.multi_turn.use_inference_chat_template": True}, "rollout.multi_turn.thinking", "strip"),
        ({f"{ROLLOUT}.multi_turn.use_inference_chat_template": "false"}, "rollout.multi_turn.thinking", "keep"),
        ({f"{ROLLOUT}.name": "hf"}, "rollout.engine", "torch"),
        (SGLANG, "rollout.engine", "sglang"),
        (SGLANG, "rollout.dtype", "bfloat16"),
        # the user who started the server chose its dtype
        (SGLANG | {"rollout.sglang.urls": ["http://h:1"]}, "rollout.dtype", "auto"),
        (SGLANG | {"trainer.device": "cuda"}, "rollout.device", "auto"),
        (SGLANG | {"trainer.device": "cuda"}, "actor.device", "cuda"),
        (SGLANG | {f"{ROLLOUT}.max_num_seqs": 64}, "rollout.max_num_seqs", 64),
        (SGLANG | {f"{ROLLOUT}.free_cache_engine": True}, "rollout.sglang.colocate", True),
        (SGLANG | {f"{ROLLOUT}.update_weights_bucket_megabytes": 128}, "rollout.sglang.weight_bucket_mb", 128),
        (SGLANG | {f"{ROLLOUT}.enable_rollout_routing_replay": True}, "rollout.routed_experts", True),
        *(
            (SGLANG | {f"{ROLLOUT}.{key}": value}, "rollout.sglang.server_args", options)
            for key, value, options in (
                ("gpu_memory_utilization", 0.6, {"mem_fraction_static": 0.6}),
                ("tensor_model_parallel_size", 2, {"tp_size": 2}),
                ("enforce_eager", True, {"disable_decode_cuda_graph": True, "disable_prefill_cuda_graph": True}),
                ("enforce_eager", False, {}),
                ("enable_chunked_prefill", False, {"chunked_prefill_size": -1}),
                ("enable_chunked_prefill", True, {}),
                ("enable_prefix_caching", "false", {"disable_radix_cache": True}),
                ("max_model_len", None, {}),
                ("max_model_len", 8192, {"context_length": 8192}),
                ("engine_kwargs.sglang.attention_backend", "fa3", {"attention_backend": "fa3"}),
                ("engine_kwargs.vllm.swap_space", 4, {}),
            )
        ),
        (
            SGLANG | {f"{ROLLOUT}.tensor_model_parallel_size": 2, f"{ROLLOUT}.data_parallel_size": 4},
            "rollout.sglang.server_args",
            {"tp_size": 8, "dp_size": 4},
        ),
        (
            SGLANG | {f"{ROLLOUT}.gpu_memory_utilization": 0.6, "rollout.sglang.server_args.mem_fraction_static": 0.7},
            "rollout.sglang.server_args",
            {"mem_fraction_static": 0.7},
        ),
        *(
            ({"async_training.staleness_threshold": share}, "trainer.max_staleness", steps)
            for share, steps in ((0, 0), (0.1, 1), ("0.5", 1), (1, 1), (1.5, 2))
        ),
        ({"async_training.partial_rollout": False}, "rollout.weight_update_mode", "drain"),
        ({"async_training.partial_rollout": True}, "rollout.weight_update_mode", "retract"),
        ({"async_training.compute_prox_log_prob": True}, "algorithm.rollout_correction.bypass_mode", False),
        ({f"{ACTOR}.strategy": "fsdp2"}, "actor.backend", "torch"),
        ({f"{ACTOR}.fsdp_config.model_dtype": "bf16"}, "model.dtype", "bfloat16"),
        ({f"{ACTOR}.optim.warmup_style": "cosine"}, "actor.optim.lr_scheduler_type", "cosine"),
        ({f"{ACTOR}.clip_ratio_high": 0.28}, "actor.clip_high", 0.28),
        # as in verl: the lower and the upper clip have separate defaults
        ({f"{ACTOR}.clip_ratio": 0.3}, "actor.clip_high", 0.2),
        ({f"{ACTOR}.clip_ratio": 0.3, f"{ACTOR}.clip_ratio_high": None}, "actor.clip_high", 0.3),
        # two steps of warm-up, of 1024 / 256 = 4 updates each
        ({f"{ACTOR}.optim.lr_warmup_steps": 2}, "actor.optim.lr_warmup_steps", 8),
        ({f"{ACTOR}.optim.lr_warmup_steps": 2.0}, "actor.optim.lr_warmup_steps", 8),
        ({f"{ACTOR}.optim.lr_warmup_steps": "2.5"}, "actor.optim.lr_warmup_steps", 8),
        ({"actor.optim.lr_warmup_steps": 2}, "actor.optim.lr_warmup_steps", 2),  # agentrl's key counts updates
        ({f"{ACTOR}.optim.lr_warmup_steps": -1}, "actor.optim.lr_warmup_steps", 0),
        ({f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.1}, "actor.optim.lr_warmup_steps_ratio", 0.1),
        (
            {f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.1, f"{ACTOR}.optim.lr_warmup_steps": -1},
            "actor.optim.lr_warmup_steps_ratio",
            0.1,
        ),
        (
            {f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.1, f"{ACTOR}.optim.lr_warmup_steps": 2},
            "actor.optim.lr_warmup_steps_ratio",
            0,
        ),
        # off by default in verl, but here nothing else limits micro-batches
        ({}, "actor.use_dynamic_bsz", True),
        ({f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4}, "actor.use_dynamic_bsz", False),
        ({f"{ACTOR}.ppo_micro_batch_size": 4}, "actor.use_dynamic_bsz", False),
        ({f"{ACTOR}.ppo_micro_batch_size": 4}, "actor.ppo_micro_batch_size_per_gpu", 4),
        ({f"{ACTOR}.use_dynamic_bsz": True}, "actor.use_dynamic_bsz", True),
        (
            {f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4},
            "actor.ppo_micro_batch_size_per_gpu",
            None,
        ),
        (
            {f"{ACTOR}.use_dynamic_bsz": "yes", f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4},
            "actor.ppo_micro_batch_size_per_gpu",
            None,
        ),
        ({"trainer.val_only": "on"}, "trainer.mode", "val_only"),
        ({"algorithm.use_kl_in_reward": "off"}, "trainer.mode", "train"),  # "off" is false, so nothing to refuse
        (
            {f"{ROLLOUT}.name": "scripted", "rollout.script_path": "s.py:reply"},
            "rollout.dtype",
            "auto",
        ),  # verl's bfloat16 is for an engine that computes
        (
            {f"{ACTOR}.use_dynamic_bsz": False, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4},
            "actor.ppo_micro_batch_size_per_gpu",
            4,
        ),
        # verl samples if the temperature is above 0
        ({f"{ROLLOUT}.val_kwargs.temperature": 0.6}, "rollout.val_kwargs.do_sample", True),
        ({f"{ROLLOUT}.val_kwargs.temperature": 0.6}, "rollout.val_kwargs.temperature", 0.6),
        ({f"{ROLLOUT}.val_kwargs.do_sample": True}, "rollout.val_kwargs.do_sample", False),
        ({f"{ROLLOUT}.val_kwargs.n": 4}, "rollout.val_kwargs.n", 1),
        # after 3 answers the model has had 4 turns
        ({f"{ROLLOUT}.multi_turn.max_user_turns": 3}, "rollout.multi_turn.max_assistant_turns", 4),
        (
            {f"{ROLLOUT}.multi_turn.max_user_turns": 3, f"{ROLLOUT}.multi_turn.max_assistant_turns": 2},
            "rollout.multi_turn.max_assistant_turns",
            2,
        ),
        (
            {f"{ROLLOUT}.multi_turn.enable": True, f"{ROLLOUT}.multi_turn.tool_config_path": "t.yaml"},
            "rollout.agent.default_agent_loop",
            "tool_agent",
        ),
        # an agentrl key without a verl equivalent
        ({"rollout.deterministic": True}, "rollout.deterministic", True),
        ({"rollout.n": 6}, "rollout.n", 6),
        ({"actor.optim.lr": 1e-5}, "actor.optim.lr", 1e-5),
        ({"actor.optim.min_lr_ratio": 0.1, "actor.optim.lr_scheduler_type": "cosine"}, "actor.optim.min_lr_ratio", 0.1),
        ({"rollout.multi_turn.max_tool_calls": 3}, "rollout.multi_turn.max_tool_calls", 3),
    ],
)
def test_values_are_translated(given, target, value) -> None:
    found: object = config_of(**given)
    for name in target.split("."):
        found = getattr(found, name)
    assert found == value


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({f"{ROLLOUT}.gpu_memory_utilization": 0.4}, "uses rollout.max_num_seqs"),
        ({f"{ROLLOUT}.tensor_model_parallel_size": 1}, "one device"),
        ({f"{ACTOR}.fsdp_config.forward_prefetch": True}, "an FSDP option"),
        ({"algorithm.kl_ctrl.kl_coef": 0.001}, "use_kl_in_reward"),
        ({f"{ACTOR}.optim.total_training_steps": 100}, "actor.optim.total_updates"),
        ({"critic.optim.lr": 1e-5}, "no critic"),
        ({"algorithm.gamma": 0.9}, "does not read it"),
        ({f"{ACTOR}.policy_loss.kl_cov_ratio": 0.1}, "loss_mode=vanilla"),
        ({"reward_model.overlong_buffer.len": 9}, "no effect if enable is false"),
        ({"reward.max_rpm": 9}, "rate_limited"),
        ({"ray_kwargs.ray_init.num_cpus": 8}, "cluster"),
        ({"trainer.logger": ["console", "swanlab"]}, "swanlab"),
        ({f"{ROLLOUT}.n": 1}, "advantage 0"),
        ({"algorithm.kl_penalty": "low_var_kl"}, "use_kl_in_reward"),
        ({f"{ACTOR}.clip_ratio": 0.3}, "no effect"),
    ],
)
def test_ignored_verl_keys_cause_one_notice(given, word) -> None:
    (notice,) = notices_of(**given)
    assert word in notice
    assert next(iter(given)) in notice


def test_keys_of_one_reason_are_one_line() -> None:
    sizes = {f"critic.engine.size_{number}": 1 for number in range(10)}
    (few,) = notices_of(**dict(list(sizes.items())[:2]))
    names = "'critic.engine.size_0', 'critic.engine.size_1'"
    assert few == f"{names} are ignored: algorithm.adv_estimator=grpo needs no critic"
    other, many = notices_of(**sizes, **{"trainer.balance_batch": True})
    assert many.count("'critic.engine.size_") == 8
    assert "'critic.engine.size_7' (+2 more) are ignored" in many
    assert other.startswith("'trainer.balance_batch' is ignored")


def test_equivalent_verl_keys_cause_no_notice() -> None:
    same = {"reward_model.reward_manager": "naive", "algorithm.use_kl_in_reward": False, "reward_model.enable": False}
    assert notices_of(**same, **{"data.truncation": "error", "reward.reward_manager.name": "naive"}) == []


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({f"{ROLLOUT}.name": "vllm"}, f"set {ROLLOUT}.name to sglang"),
        ({f"{ROLLOUT}.over_sample_rate": 0.1}, "trainer.over_sampling"),
        ({"async_training.trigger_parameter_sync_step": 4}, "weights are published after every step"),
        ({f"{ROLLOUT}.data_parallel_size": 0} | SGLANG, "a number of devices"),
        ({"async_training.staleness_threshold": "much"}, "async_training.staleness_threshold"),
        ({"trainer.v1.trainer_mode": "separate_async"}, "trainer.max_staleness=1"),
        ({f"{ROLLOUT}.tensor_model_parallel_size": "yes"}, "set it to 1"),
        ({f"{ACTOR}.optim.lr_warmup_steps": "inf"}, f"{ACTOR}.optim.lr_warmup_steps"),
        ({f"{ROLLOUT}.tensor_model_parallel_size": 2}, "set it to 1"),
        ({"algorithm.kl_penalty": "full", "algorithm.use_kl_in_reward": True}, "is not supported"),
        ({"algorithm.adv_estimator": "grop"}, "did you mean 'grpo'?"),
        ({"actor_rollout_ref.model.lora.dropout": 0.1}, "without dropout"),
        ({"data.truncation": "lefd"}, "did you mean 'left'?"),
        ({"algorithm.adv_estimator": "optimal_token_baseline"}, "is not supported"),
        ({f"{ACTOR}.policy_loss.loss_mode": "gsop"}, "did you mean 'gspo'?"),
        ({f"{ACTOR}.loss_scale_factor": 9}, "data.max_response_length"),
        ({"reward_model.reward_manager": "primes"}, "did you mean 'prime'?"),
        (
            {"reward_model.reward_kwargs.max_resp_len": 9, "reward_model.reward_manager": "dapo"}
            | {"reward_model.reward_kwargs.overlong_buffer_cfg.enable": True},
            "data.max_response_length, 512",
        ),
        ({"reward_model.enable": True, "custom_reward_function.path": "r.py"}, "reward.name=judge"),
        ({"trainer.critic_warmup": 20}, "set it to 0"),
        ({"data.gen_batch_size": 9}, "filter_groups.enable=True"),
        ({"critic.cliprange_valu": 0.2}, "did you mean 'critic.cliprange_value'?"),
        ({f"{ACTOR}.fsdp_config.mixed_precision.param_dtype": "fp32"}, "fsdp_config.dtype"),
        ({"trainer.logger": "consol"}, "did you mean 'console'?"),
        ({f"{ACTOR}.loss_agg_mode": "token_mean"}, "did you mean 'token-mean'?"),
        ({"actor.optim.lr_warmup_steps_ratio": 2}, "less than or equal to 1"),
        ({"data.dataset_weights": [1], "data.train_files": ["a", "b"]}, "needs one weight per train file: 2, not 1"),
        ({f"{ROLLOUT}.gpu_memory_utilisation": 0.4}, f"did you mean '{ROLLOUT}.gpu_memory_utilization'?"),
        ({f"{ROLLOUT}.n": 4, "algorithm.group_size": 8}, "set one option to different values"),
    ],
)
def test_verl_keys_that_change_results_are_refused_with_a_replacement(given, complaint) -> None:
    with pytest.raises(ConfigError) as error:
        config_of(**given)
    assert complaint in str(error.value)
    assert next(iter(given)) in str(error.value)
    assert "\n" not in str(error.value)
