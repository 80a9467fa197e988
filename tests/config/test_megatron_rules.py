"""Rules for Megatron's parallel layouts."""

from __future__ import annotations

import pytest
from complaints import complaint, has_key_and_kind, keys_and_kinds, problems_of

from agentrl.config import validate_config
from agentrl.config.megatron import MegatronConfig
from agentrl.config.rules.model_layout import ModelShape, check_layout, wrong_for_model
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, Kind
from agentrl.models.shape import model_shape

TP, PP, CP = "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"
EP, ETP, VPP = "expert_model_parallel_size", "expert_tensor_parallel_size", "virtual_pipeline_model_parallel_size"
FIRST, LAST = "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"
DISPATCHER = "moe_token_dispatcher_type"
CONFLICT, UNUSED = Kind.CONFLICT, Kind.UNUSED
ALONE = {"share_prefixes": False}


pytestmark = pytest.mark.usefixtures("megatron")


def sections(layout: dict, processes: int = 8, actor: dict | None = None, **others) -> dict:
    trained = {"backend": "megatron", "megatron": layout, **(actor or {})}
    return {"actor": trained, "trainer": {"n_gpus_per_node": processes}, **others}


def test_keys_of_a_layout_are_refused_one_by_one_by_other_backends():
    layout = {TP: 2, "moe_aux_loss_coeff": 0.1}
    assert keys_and_kinds(problems_of(actor={"megatron": layout})) == {
        (f"actor.megatron.{TP}", UNUSED),
        ("actor.megatron.moe_aux_loss_coeff", UNUSED),
    }


@pytest.mark.parametrize("part", ["ref", "critic"])
def test_other_models_have_no_layout_of_their_own(part):
    with pytest.raises(ConfigError, match=f"^unknown key '{part}.megatron': did you mean 'actor.megatron'\\?$"):
        validate_config({"model": {"path": "m"}, part: {"megatron": {TP: 2}}})


@pytest.mark.parametrize(
    ("keys", "expert_tensor", "sequence"),
    [
        ({}, 1, False),
        ({TP: 4}, 4, True),
        ({TP: 4, ETP: 1}, 1, True),
        ({TP: 4, "sequence_parallel": False}, 4, False),
    ],
)
def test_null_follows_the_tensor_parallel_size(keys, expert_tensor, sequence):
    layout = MegatronConfig(**keys)
    assert (layout.expert_tensor_size, layout.sequence_is_parallel) == (expert_tensor, sequence)


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {TP: 8},
        {TP: 2, EP: 2, ETP: 1},
        {TP: 2, EP: 2},
        {EP: 8},
        {"overlap_param_gather": True, "overlap_grad_reduce": True},
        {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 2},
        {"recompute_granularity": "selective", "recompute_modules": ["core_attn", "mlp"]},
        {EP: 2, DISPATCHER: "allgather"},
        {VPP: 1},
    ],
)
def test_layouts_that_share_prefixes(layout):
    assert problems_of(**sections(layout)) == []


@pytest.mark.parametrize(
    "layout",
    [{TP: 2, PP: 2, CP: 2}, {PP: 4, VPP: 2, FIRST: 4, LAST: 2}, {TP: 2, PP: 2, EP: 2, ETP: 1}, {CP: 8, EP: 8}],
)
def test_layouts_that_do_not_share_prefixes(layout):
    assert problems_of(**sections(layout, actor=ALONE)) == []
    assert keys_and_kinds(problems_of(**sections(layout))) == {("actor.share_prefixes", CONFLICT)}


@pytest.mark.parametrize(
    ("layout", "key", "kind"),
    [
        ({TP: 3}, TP, CONFLICT),
        ({TP: 4, PP: 4}, TP, CONFLICT),
        ({CP: 16}, CP, CONFLICT),
        ({TP: 4, EP: 4}, ETP, CONFLICT),
        ({EP: 16}, EP, CONFLICT),
        ({PP: 2, EP: 8}, EP, CONFLICT),
        ({TP: 4, ETP: 1}, ETP, CONFLICT),
        ({ETP: 2}, ETP, CONFLICT),
        ({TP: 4, EP: 2, ETP: 2}, ETP, CONFLICT),
        ({TP: 2, EP: 2, "sequence_parallel": False}, "sequence_parallel", CONFLICT),
        ({"sequence_parallel": True}, "sequence_parallel", UNUSED),
        ({VPP: 2}, VPP, UNUSED),
        ({FIRST: 2}, FIRST, UNUSED),
        ({LAST: 2}, LAST, UNUSED),
        ({PP: 2, VPP: 2, LAST: 3}, LAST, CONFLICT),
        ({"overlap_param_gather": True}, "overlap_param_gather", UNUSED),
        (
            {"overlap_param_gather": True, "overlap_grad_reduce": True, "use_distributed_optimizer": False},
            "overlap_param_gather",
            UNUSED,
        ),
        ({PP: 2, DISPATCHER: "allgather"}, DISPATCHER, Kind.NOT_SUPPORTED),
        ({"recompute_method": "block"}, "recompute_method", UNUSED),
        ({"recompute_num_layers": 2}, "recompute_num_layers", UNUSED),
        ({"recompute_modules": ["mlp"]}, "recompute_modules", UNUSED),
        ({"recompute_granularity": "full", "recompute_modules": ["mlp"]}, "recompute_modules", UNUSED),
        ({"recompute_granularity": "selective", "recompute_num_layers": 2}, "recompute_num_layers", UNUSED),
    ],
)
def test_wrong_layouts_are_refused_by_key(layout, key, kind):
    assert keys_and_kinds(problems_of(**sections(layout, actor=ALONE))) == {(f"actor.megatron.{key}", kind)}


@pytest.mark.parametrize(
    ("others", "actor", "layout", "key", "kind"),
    [
        ({}, {"fsdp_size": 2}, {}, "actor.fsdp_size", UNUSED),
        ({}, {"ulysses_sequence_parallel_size": 2}, {}, "actor.ulysses_sequence_parallel_size", UNUSED),
        ({}, {"device": "cpu"}, {"transformer_engine": True}, "actor.megatron.transformer_engine", CONFLICT),
        (
            {"model": {"path": "m", "enable_gradient_checkpointing": True}},
            {},
            {"recompute_granularity": "selective"},
            "model.enable_gradient_checkpointing",
            CONFLICT,
        ),
    ],
)
def test_options_that_contradict_a_layout_are_refused(others, actor, layout, key, kind):
    assert keys_and_kinds(problems_of(**sections(layout, actor=actor, **others))) == {(key, kind)}


PREDICTION = "mtp_loss_scaling_factor"


@pytest.mark.parametrize(
    ("others", "actor", "layout", "key", "kind"),
    [
        ({}, {}, {}, "actor.share_prefixes", CONFLICT),
        ({"model": {"path": "m", "lora_rank": 4}}, ALONE, {}, f"actor.megatron.{PREDICTION}", CONFLICT),
        ({"model": {"path": "m", "lora_adapter_path": "a"}}, ALONE, {}, f"actor.megatron.{PREDICTION}", CONFLICT),
        ({"algorithm": {"name": "reward_pairs"}}, ALONE, {}, f"actor.megatron.{PREDICTION}", UNUSED),
        *(
            ({}, ALONE, {name: 0.1}, f"actor.megatron.{name}", Kind.NOT_SUPPORTED)
            for name in ("moe_aux_loss_coeff", "moe_z_loss_coeff", "moe_router_bias_update_rate")
        ),
    ],
)
def test_options_that_do_not_work_with_multi_token_prediction_are_refused(others, actor, layout, key, kind):
    assert problems_of(**sections({PREDICTION: 0.1, PP: 2, CP: 2}, actor=ALONE)) == []
    found = problems_of(**sections({PREDICTION: 0.1, **layout}, actor=actor, **others))
    assert (key, kind) in keys_and_kinds(found)
    assert len(found) == 1 or "algorithm" in others


def test_gradient_checkpointing_of_complete_layers_can_be_tuned():
    model = {"path": "m", "enable_gradient_checkpointing": True}
    assert problems_of(**sections({"recompute_method": "block", "recompute_num_layers": 2}, model=model)) == []


def test_the_optimizer_alone_can_be_offloaded():
    assert problems_of(**sections({TP: 2}, actor={"optimizer_offload": True})) == []


def test_a_backend_without_shared_prefixes_needs_no_option(megatron):
    megatron(options=frozenset({"megatron"}))
    assert problems_of(**sections({PP: 2})) == []
    assert problems_of(**sections({PP: 2}, actor=ALONE)) == []  # it does what is asked


def test_keys_that_a_backend_with_layouts_does_not_read_are_refused(megatron):
    megatron(without=frozenset({"overlap_grad_reduce", "moe_z_loss_coeff"}))
    assert keys_and_kinds(problems_of(**sections({"overlap_grad_reduce": True}))) == {
        ("actor.megatron.overlap_grad_reduce", Kind.NOT_SUPPORTED)
    }
    assert problems_of(**sections({"moe_aux_loss_coeff": 0.1})) == []
    pipeline = {PP: 2, "moe_aux_loss_coeff": 0.1, "recompute_granularity": "full"}
    assert problems_of(**sections(pipeline, actor=ALONE)) == []


def test_an_optimizer_that_the_backend_does_not_have_is_refused(megatron):
    optim = {"optim": {"name": "muon"}}
    asked = sections({TP: 2}, actor=optim, critic=optim, algorithm={"name": "gae"})
    assert keys_and_kinds(problems_of(**asked)) == {
        ("actor.optim.name", Kind.NOT_SUPPORTED),
        ("critic.optim.name", Kind.NOT_SUPPORTED),
    }
    assert "'actor.optim.name=muon' is not an optimizer of 'actor.backend=megatron': use 'actor.backend=torch'" in (
        complaint(**asked)
    )
    megatron(optimizers=frozenset({"adamw", "muon"}))
    assert problems_of(**asked) == []


def test_all_mistakes_are_reported_with_their_reason():
    lines = complaint(**sections({TP: 3, ETP: 1, VPP: 2}, actor={"fsdp_size": 2})).splitlines()
    assert len(lines) == 4
    assert any("'actor.megatron.tensor_model_parallel_size=3' does not divide the number of" in line for line in lines)
    assert any("would not sum the gradients of the experts" in line for line in lines)


DENSE = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128}
EXPERTS = {**DENSE, "num_experts": 8, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
DEEPSEEK = {
    **DENSE,
    "model_type": "deepseek_v3",
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "num_experts_per_tok": 4,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "num_nextn_predict_layers": 1,
}


def wrong(layout: dict, content: dict) -> set[tuple[str, Kind]]:
    shape = model_shape(content)
    assert isinstance(shape, ModelShape)
    problems = list(wrong_for_model(MegatronConfig(**layout), shape))
    assert all(map(has_key_and_kind, problems))
    return {(problem.key.removeprefix("actor.megatron."), problem.kind) for problem in problems}


@pytest.mark.parametrize(
    ("layout", "content"),
    [
        ({TP: 2, PP: 2, VPP: 2, CP: 2}, DENSE),
        ({PP: 2, FIRST: 1}, DENSE),
        ({PP: 3, FIRST: 1, LAST: 1}, DENSE),
        ({PP: 2, FIRST: 1, LAST: 3}, DENSE),
        ({TP: 2, EP: 8, ETP: 1, "moe_aux_loss_coeff": 0.1}, EXPERTS),
        ({TP: 4, "sequence_parallel": True, "mtp_loss_scaling_factor": 0.1}, DEEPSEEK),
        ({"recompute_modules": ["moe", "shared_experts"], EP: 2}, DEEPSEEK),
        ({"moe_router_bias_update_rate": 1e-3}, DEEPSEEK),
        ({TP: 2, "sequence_parallel": False}, DENSE),
    ],
)
def test_layouts_that_fit_a_model(layout, content):
    assert wrong(layout, content) == set()


@pytest.mark.parametrize(
    ("layout", "content", "key", "kind"),
    [
        ({PP: 3}, DENSE, PP, CONFLICT),
        ({PP: 2, VPP: 3}, DENSE, PP, CONFLICT),
        ({PP: 8}, DENSE, PP, CONFLICT),
        ({PP: 4, FIRST: 2}, DENSE, PP, CONFLICT),
        ({PP: 2, FIRST: 4}, DENSE, PP, CONFLICT),
        ({PP: 2, FIRST: 1, LAST: 1}, DENSE, PP, CONFLICT),
        ({TP: 4}, DENSE, TP, CONFLICT),
        ({TP: 8}, {**DEEPSEEK, "num_attention_heads": 12}, TP, CONFLICT),
        ({TP: 2}, {**DENSE, "intermediate_size": 129}, TP, CONFLICT),
        ({TP: 2, EP: 2, ETP: 1}, {**DEEPSEEK, "n_shared_experts": 1, "moe_intermediate_size": 33}, TP, CONFLICT),
        ({EP: 3}, EXPERTS, EP, CONFLICT),
        ({TP: 2, EP: 2}, {**EXPERTS, "moe_intermediate_size": 33}, ETP, CONFLICT),
        ({EP: 2}, DENSE, EP, UNUSED),
        ({"moe_router_dtype": "fp32"}, DENSE, "moe_router_dtype", UNUSED),
        ({"moe_router_bias_update_rate": 1e-3}, EXPERTS, "moe_router_bias_update_rate", UNUSED),
        ({"mtp_loss_scaling_factor": 0.1}, EXPERTS, "mtp_loss_scaling_factor", UNUSED),
        ({TP: 2, "sequence_parallel": False}, EXPERTS, "sequence_parallel", CONFLICT),
        ({TP: 2, "sequence_parallel": False}, {**DENSE, "kv_lora_rank": 16}, "sequence_parallel", CONFLICT),
        ({"recompute_modules": ["moe"]}, DENSE, "recompute_modules", CONFLICT),
        ({"recompute_modules": ["shared_experts"]}, EXPERTS, "recompute_modules", CONFLICT),
        ({}, {**DEEPSEEK, "num_experts_per_tok": 6}, "model.path", Kind.NOT_SUPPORTED),
        ({}, {**DEEPSEEK, "quantization_config": {"quant_method": "fp8"}}, "model.path", Kind.NOT_SUPPORTED),
        ({}, {**DENSE, "quantization_config": "odd"}, "model.path", Kind.NOT_SUPPORTED),
    ],
)
def test_layouts_that_do_not_fit_a_model_are_refused_by_key(layout, content, key, kind):
    assert wrong(layout, content) == {(key, kind)}


@pytest.mark.parametrize(
    ("content", "width"),
    [
        (DENSE, 128),
        (EXPERTS, 0),
        (DEEPSEEK, 128),
        ({**EXPERTS, "mlp_only_layers": [0]}, 128),
        ({**EXPERTS, "decoder_sparse_step": 2}, 128),
    ],
)
def test_the_width_of_dense_layers_counts_only_if_there_are_some(content, width):
    assert model_shape(content).intermediate_size == width


@pytest.mark.parametrize("name", ["layernorm", "mla_up_proj"])
def test_modules_that_only_transformer_engine_recomputes_are_no_values(name):
    layout = {"recompute_granularity": "selective", "recompute_modules": [name]}
    with pytest.raises(ConfigError, match=r"actor\.megatron\.recompute_modules.*core_attn"):
        validate_config({"model": {"path": "m"}, **sections(layout)})


def test_sums_during_the_backward_pass_do_not_work_with_virtual_stages():
    layout = {"overlap_grad_reduce": True, PP: 2}
    assert problems_of(**sections(layout, actor=ALONE)) == []
    assert keys_and_kinds(problems_of(**sections({**layout, VPP: 2}, actor=ALONE))) == {
        ("actor.megatron.overlap_grad_reduce", Kind.NOT_SUPPORTED)
    }


@pytest.mark.parametrize(
    ("layout", "processes", "has_effect"),
    [
        ({}, 1, False),
        ({TP: 2}, 2, False),
        ({TP: 2, PP: 2}, 4, False),
        ({TP: 2, EP: 2, ETP: 1}, 2, False),
        ({}, 2, True),
        ({TP: 2}, 4, True),
        ({CP: 2}, 2, True),
        ({EP: 2}, 2, True),
        ({TP: 4, EP: 2, ETP: 1}, 4, True),  # each expert is on two processes
    ],
)
def test_sums_during_the_backward_pass_need_processes_that_sum(layout, processes, has_effect):
    found = problems_of(**sections({**layout, "overlap_grad_reduce": True}, processes, ALONE))
    expected = set() if has_effect else {("actor.megatron.overlap_grad_reduce", UNUSED)}
    assert keys_and_kinds(found) == expected


def test_a_file_without_shapes_is_not_judged():
    assert model_shape({"num_hidden_layers": 4}) is None
    check_layout(RunConfig.model_validate({"model": {"path": "m"}, **sections({PP: 3})}), None)


def test_a_layout_is_checked_only_for_backends_with_layouts():
    wrong_stages = {"megatron": {PP: 3}}
    check_layout(RunConfig.model_validate({"model": {"path": "m"}, "actor": wrong_stages}), model_shape(DENSE))
    with pytest.raises(ConfigError, match="pipeline_model_parallel_size=3' does not divide the 4 layers"):
        check_layout(RunConfig.model_validate({"model": {"path": "m"}, **sections({PP: 3})}), model_shape(DENSE))
