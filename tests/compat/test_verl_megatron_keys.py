"""verl's keys for Megatron: mapped with `strategy=megatron`, otherwise ignored."""

from __future__ import annotations

import pytest

from agentrl.backends.megatron.spec import SPEC
from agentrl.compat.verl.keys.rows import Fixed, Hint, Mapped
from agentrl.compat.verl.keys.table import PPO
from agentrl.compat.verl.keys.translate import nested, translate
from agentrl.config import RunConfig, validate_config
from agentrl.errors import ConfigError

ACTOR, REF = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
LAYOUT, MODEL, DDP = f"{ACTOR}.megatron", f"{ACTOR}.megatron.override_transformer_config", "override_ddp_config"
TP, PP = "tensor_model_parallel_size", "pipeline_model_parallel_size"
MTP = "actor_rollout_ref.model.mtp"
TRAINED = {f"{MTP}.{key}": True for key in ("enable", "enable_train", "detach_encoder")}
NEEDED = {
    "actor_rollout_ref.model.path": "m",
    "algorithm.adv_estimator": "grpo",
    "actor_rollout_ref.rollout.n": 2,
    f"{ACTOR}.strategy": "megatron",
    "trainer.n_gpus_per_node": 8,
}

pytestmark = pytest.mark.usefixtures("megatron")


def config_of(**keys: object) -> RunConfig:
    return validate_config(nested(translate(nested(NEEDED | keys)).values))


def notices_of(**keys: object) -> list[str]:
    return translate(nested(NEEDED | keys)).lines()


def test_a_published_command_is_translated():
    """The options of verl's script for DeepSeek-V3 on 256 GPUs with 80 GB."""
    layout = {TP: 1, PP: 16, "expert_model_parallel_size": 16, "expert_tensor_parallel_size": 1}
    offload = {"param_offload": True, "optimizer_offload": True, "grad_offload": True}
    stages = {"num_layers_in_first_pipeline_stage": 4, "num_layers_in_last_pipeline_stage": 1}
    recomputed = {"recompute_method": "uniform", "recompute_granularity": "full", "recompute_num_layers": 1}
    config = config_of(
        **{f"{LAYOUT}.{key}": value for key, value in {**layout, **offload, "use_mbridge": True}.items()},
        **{f"{REF}.megatron.{key}": value for key, value in {**layout, "param_offload": True}.items()},
        **{f"{MODEL}.{key}": value for key, value in {**stages, **recomputed}.items()},
        **{"trainer.nnodes": 32},
    )
    ours = config.actor.megatron
    assert {key: getattr(ours, key) for key in layout} == layout
    assert {key: getattr(ours, key) for key in (*stages, *recomputed)} == {**stages, **recomputed}
    assert (ours.use_mbridge, config.ref.param_offload) == (True, True)
    assert (config.actor.param_offload, config.actor.optimizer_offload) == (True, True)
    assert (config.model.dtype, config.actor.autocast, config.actor.share_prefixes) == ("bfloat16", None, False)


def test_values_of_verls_megatron_yaml_are_defaults():
    """verl's ppo_megatron_trainer writes all of these values."""
    layout = {TP: 1, PP: 1, "virtual_pipeline_model_parallel_size": None, "expert_tensor_parallel_size": None}
    options = {"sequence_parallel": True, "use_distributed_optimizer": True, "use_mbridge": False, "dtype": "bfloat16"}
    unused = {"use_dist_checkpointing": False, "seed": 42, "forward_only": False, DDP: {}, "param_offload": False}
    model = {"recompute_granularity": None, "recompute_modules": ["core_attn"], "recompute_method": None}
    kernels = {"attention_backend": "flash", "variable_seq_lengths": True, "moe_token_dispatcher_type": "alltoall"}
    sections = {
        f"{section}.megatron.{key}": value
        for section in (ACTOR, REF)
        for key, value in ({**layout, **options, **unused, "override_mcore_model_config": {}}.items())
    }
    config = config_of(**sections, **{f"{MODEL}.{key}": value for key, value in {**model, **kernels}.items()})
    assert config.actor.megatron == config_of().actor.megatron
    assert config.actor.megatron.sequence_parallel is None


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        ({f"{LAYOUT}.sequence_parallel": False}, "sequence_parallel", False),
        ({f"{MODEL}.moe_token_dispatcher_type": "flex"}, "moe_token_dispatcher_type", "alltoall"),
        ({f"{MODEL}.moe_token_dispatcher_type": "allgather"}, "moe_token_dispatcher_type", "allgather"),
        ({f"{MODEL}.moe_router_dtype": "fp32"}, "moe_router_dtype", "fp32"),
        ({f"{MODEL}.moe_aux_loss_coeff": 0.1}, "moe_aux_loss_coeff", 0.0),
        (
            {f"{MODEL}.moe_aux_loss_coeff": 0.1, f"{MODEL}.moe_router_load_balancing_type": "aux_loss"},
            "moe_aux_loss_coeff",
            0.1,
        ),
        ({f"{LAYOUT}.{DDP}.overlap_grad_reduce": True}, "overlap_grad_reduce", True),
        (
            {f"{MODEL}.recompute_granularity": "selective", f"{MODEL}.recompute_modules": ["mlp"]},
            "recompute_modules",
            ("mlp",),
        ),
    ],
)
def test_options_are_mapped(given, key, value):
    assert getattr(config_of(**given).actor.megatron, key) == value


def test_precision_and_recomputation_can_be_given():
    key = "actor_rollout_ref.model.enable_gradient_checkpointing"
    config = config_of(**{f"{LAYOUT}.dtype": "float32", key: True})
    assert (config.model.dtype, config.model.enable_gradient_checkpointing) == ("float32", True)
    assert not config_of().model.enable_gradient_checkpointing
    selective = config_of(**{key: True, f"{MODEL}.recompute_granularity": "selective"})
    assert not selective.model.enable_gradient_checkpointing


@pytest.mark.parametrize(("mode", "section"), [("R2", "actor"), ("R3", "rollout"), ("disabled", None)])
def test_recorded_experts_are_replayed(mode, section):
    config = config_of(**{f"{ACTOR}.router_replay.mode": mode, "actor_rollout_ref.rollout.name": "sglang"})
    assert config.routed_by == section


def test_an_unknown_mode_of_replay_is_refused():
    with pytest.raises(ConfigError, match="'R4' is not a mode: use R2, R3 or disabled"):
        config_of(**{f"{ACTOR}.router_replay.mode": "R4", "actor_rollout_ref.rollout.name": "sglang"})


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({f"{LAYOUT}.use_dist_checkpointing": True}, "weights are read from the Hugging Face folder"),
        ({f"{LAYOUT}.override_mcore_model_config.a": 1}, "change config.json of the model"),
        ({f"{MODEL}.hidden_dropout": 0.1}, "use a key of actor.megatron"),
        ({f"{MODEL}.account_for_loss_in_pipeline_split": True}, "actor.megatron.num_layers_in_last_pipeline_stage"),
        ({f"{MODEL}.moe_router_load_balancing_type": "sinkhorn"}, "use actor.megatron.moe_aux_loss_coeff"),
        ({f"{MODEL}.moe_token_dispatcher_type": "alltoal"}, "did you mean 'alltoall'?"),
        ({f"{LAYOUT}.{DDP}.bucket_size": 1}, "use actor.megatron.overlap_grad_reduce"),
        ({f"{ACTOR}.optim.override_optimizer_config.optimizer_cpu_offload": True}, "megatron.optimizer_offload=True"),
        ({f"{REF}.megatron.{TP}": 2}, f"it must equal 'actor.megatron.{TP}', which is 1"),
        ({f"{REF}.megatron.{PP}": 2, "critic.strategy": "fsdp"}, f"it must equal 'actor.megatron.{PP}', which is 1"),
        (
            {f"critic.megatron.{TP}": 2, "algorithm.adv_estimator": "gae"},
            f"it must equal 'actor.megatron.{TP}', which is 1",
        ),
        ({"critic.strategy": "fsdp", "algorithm.adv_estimator": "gae"}, "the critic uses the actor's strategy"),
        (
            {f"{ACTOR}.strategy": "fsdp", "critic.strategy": "megatron", "algorithm.adv_estimator": "gae"},
            "the critic uses the actor's strategy",
        ),
        ({f"{MTP}.enable_rollout": True}, "engines do not get these layers"),
        ({f"{MTP}.{key}": True for key in ("enable", "enable_train")}, f"needs '{MTP}.detach_encoder=True'"),
        (TRAINED | {f"{ACTOR}.strategy": "fsdp2"}, f"needs '{ACTOR}.strategy=megatron'"),
        ({f"{LAYOUT}.tensor_model_parallel_siz": 2}, f"did you mean '{LAYOUT}.{TP}'?"),
    ],
)
def test_keys_that_change_results_are_refused_with_a_replacement(given, complaint):
    with pytest.raises(ConfigError) as error:
        config_of(**given)
    (line,) = str(error.value).splitlines()
    assert complaint in line


@pytest.mark.parametrize(
    ("given", "factor"),
    [
        ({}, 0.0),
        ({f"{MTP}.mtp_loss_scaling_factor": 0.3}, 0.0),
        ({f"{MTP}.enable": True, f"{MTP}.num_speculative_tokens": 2}, 0.0),
        ({f"{MTP}.enable_train": True}, 0.0),
        (TRAINED, 0.1),
        (TRAINED | {f"{MTP}.mtp_loss_scaling_factor": 0.3}, 0.3),
        (TRAINED | {"actor.megatron.mtp_loss_scaling_factor": 0.2}, 0.2),
    ],
)
def test_layers_for_multi_token_prediction_are_trained_as_in_verl(given, factor):
    config = config_of(**given)
    assert config.actor.megatron.mtp_loss_scaling_factor == factor
    assert config.actor.share_prefixes == (not factor)


def test_no_key_and_no_advice_names_an_option_that_megatron_refuses():
    refused = {f"actor.megatron.{name}" for name in SPEC.without}
    words = [
        *((row.key, name) for row in PPO.rows if isinstance(row, Mapped) for name in (*row.names, row.note)),
        *((row.key, row.why) for row in PPO.rows if isinstance(row, Hint)),
        *((row.key, text) for row in PPO.rows if isinstance(row, Fixed) for text in (row.instead, row.notice)),
    ]
    assert [(key, text) for key, text in words for name in refused if name in text] == []


def test_options_that_change_only_the_speed_are_ignored():
    notices = notices_of(**{f"{LAYOUT}.{DDP}.overlap_param_gather": True})
    assert any("it changes only the speed" in line for line in notices)


def test_equal_layouts_and_unused_critics_are_accepted():
    sizes = {f"{part}.megatron.{TP}": 2 for part in (ACTOR, REF)}
    assert config_of(**sizes, **{f"critic.megatron.{TP}": 4}).actor.megatron.tensor_model_parallel_size == 2


def test_options_are_ignored_for_other_strategies():
    given = {f"{LAYOUT}.{TP}": 2, f"{LAYOUT}.param_offload": True, f"{REF}.megatron.param_offload": True}
    draft = translate(nested({**NEEDED, f"{ACTOR}.strategy": "fsdp2", **given}))
    assert [line for line in draft.lines() if "strategy is not megatron" in line and all(key in line for key in given)]
    config = validate_config(nested(draft.values))
    assert (config.actor.megatron.tensor_model_parallel_size, config.actor.param_offload) == (1, False)


def test_ignored_keys_give_their_reason():
    given = {f"{LAYOUT}.seed": 7, f"{LAYOUT}.grad_offload": True, f"{MODEL}.moe_permute_fusion": True}
    assert [any(key in line for line in notices_of(**given)) for key in given] == [True] * 3


def test_fsdps_options_are_ignored():
    fsdp = {"param_offload": False, "model_dtype": "fp32", "fsdp_size": 4}
    given = {f"{ACTOR}.fsdp_config.{key}": value for key, value in fsdp.items()}
    config = config_of(**given, **{f"{LAYOUT}.param_offload": True})
    assert (config.actor.param_offload, config.model.dtype, config.actor.fsdp_size) == (True, "bfloat16", None)
    assert [
        line for line in notices_of(**given) if "strategy is megatron" in line and all(key in line for key in given)
    ]


def test_every_section_has_the_same_keys():
    keys = {row.key.removeprefix(f"{LAYOUT}.").split(".")[0] for row in PPO.rows if row.key.startswith(f"{LAYOUT}.")}
    for section in (REF, "critic"):
        assert [key for key in keys if PPO.find(f"{section}.megatron.{key}") is None] == []
