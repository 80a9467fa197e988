import pytest
from complaints import keys_and_kinds
from pydantic import ValidationError

from agentrl.config import validate_config
from agentrl.config.document import describe_config, redacted
from agentrl.config.rules.combinations import check_evaluation, check_training
from agentrl.config.validate import config_fields
from agentrl.errors import ConfigError, Kind

MODEL = {"path": "m"}


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"rollout": {"nn": 3}}, "unknown key 'rollout.nn': did you mean 'rollout.n'?"),
        ({"rollout": {"lr": 1}}, "unknown key 'rollout.lr': did you mean 'actor.optim.lr'?"),
        ({"rollot": {}}, "unknown key 'rollot': did you mean 'rollout'?"),
        ({"rollout": {"engine": "vllm"}}, "'rollout.engine': expected scripted, sglang, torch or path/to/file.py:NAME"),
        ({"actor": {"clip_ratio_c": 1.1}}, "'actor': clip_ratio_c must be above 1 + clip_ratio_high, 1.2"),
    ],
)
def test_the_message_names_the_expected_value(values, complaint) -> None:
    with pytest.raises(ConfigError) as raised:
        validate_config({"model": MODEL, **values})
    assert complaint in str(raised.value)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"rollout": {"n": "many"}}, ("rollout.n", Kind.WRONG_VALUE)),
        ({"rollout": {"engine": "vllm"}}, ("rollout.engine", Kind.WRONG_VALUE)),
        ({"actor": {"clip_ratio_c": 1.1}}, ("actor", Kind.WRONG_VALUE)),
        ({"rollout": {"engine": "sglang", "device": "cuda"}}, ("rollout.device", Kind.UNUSED)),
        ({"rollout": {"sglang": {"num_replicas": 2}}}, ("rollout.sglang.num_replicas", Kind.UNUSED)),
        (
            {"rollout": {"engine": "sglang", "sglang": {"urls": ["http://a"], "num_replicas": 2}}},
            ("rollout.sglang.num_replicas", Kind.UNUSED),
        ),
        (
            {"rollout": {"engine": "sglang", "sglang": {"urls": ["http://a"], "server_args": {"tp-size": 2, "x": 1}}}},
            ("rollout.sglang.server_args.x", Kind.UNUSED),
        ),
        (
            {"rollout": {"engine": "sglang", "dtype": "bfloat16", "sglang": {"urls": ["http://a"]}}},
            ("rollout.dtype", Kind.UNUSED),
        ),
        (
            {"rollout": {"engine": "sglang", "sglang": {"router_url": "http://r"}}},
            ("rollout.sglang.router_url", Kind.UNUSED),
        ),
        ({"rollout": {"weight_sync": "delta"}}, ("rollout.weight_sync", Kind.UNUSED)),
        (
            {"rollout": {"engine": "sglang", "weight_sync": "delta", "sglang": {"weight_transfer": "disk"}}},
            ("rollout.sglang.weight_transfer", Kind.UNUSED),
        ),
        (
            {
                "rollout": {
                    "engine": "sglang",
                    "routed_experts": True,
                    "sglang": {"urls": ["http://a"], "router_url": "http://r"},
                }
            },
            ("rollout.sglang.router_url", Kind.CONFLICT),
        ),
        (
            {"rollout": {"sglang": {"urls": ["node1:30000"]}}},
            ("rollout.sglang.urls.0", Kind.WRONG_VALUE),
        ),
        ({"rollout": {"sglang": {"urls": ["http://a", "http://a/"]}}}, ("rollout.sglang.urls", Kind.WRONG_VALUE)),
        ({"rollout": {"sglang": {"router_url": "r"}}}, ("rollout.sglang.router_url", Kind.WRONG_VALUE)),
        ({"rollout": {"routed_experts": True}}, ("rollout.routed_experts", Kind.UNUSED)),
        (
            {"algorithm": {"name": "sft"}, "rollout": {"engine": "sglang", "routed_experts": True}},
            ("rollout.routed_experts", Kind.UNUSED),
        ),
        ({"actor": {"routed_experts": True}}, ("actor.routed_experts", Kind.UNUSED)),
        ({"algorithm": {"name": "dpo"}, "actor": {"routed_experts": True}}, ("actor.routed_experts", Kind.UNUSED)),
        (
            {
                "actor": {"routed_experts": True},
                "rollout": {"engine": "sglang", "routed_experts": True},
                "algorithm": {"rollout_correction": {"bypass_mode": False}},
            },
            ("actor.routed_experts", Kind.CONFLICT),
        ),
        ({"actor": {"backend": "no_such_module:X"}}, ("actor.backend", Kind.NOT_FOUND)),
        ({"rollout": {"engine": "no_such_module:X"}}, ("rollout.engine", Kind.NOT_FOUND)),
        ({"rollout": {"engine": "scripted"}}, ("rollout.engine", Kind.MISSING)),
        ({"rollout": {"script_path": "s.py"}}, ("rollout.script_path", Kind.UNUSED)),
        (
            {"rollout": {"engine": "scripted", "script_path": "s", "deterministic": True}},
            ("rollout.deterministic", Kind.UNUSED),
        ),
        ({"rollout": {"val_kwargs": {"n": 2}}}, ("rollout.val_kwargs.n", Kind.WRONG_VALUE)),
        ({"rollout": {"val_kwargs": {"temperature": 0.5}}}, ("rollout.val_kwargs.temperature", Kind.UNUSED)),
        ({"reward": {"custom_reward_function": {"name": "f"}}}, ("reward.custom_reward_function.name", Kind.UNUSED)),
        ({"reward": {"name": "gsm8k", "custom_reward_function": {"path": "f.py"}}}, ("reward.name", Kind.UNUSED)),
        ({"algorithm": {"name": "sft"}, "rollout": {"temperature": 0.5}}, ("rollout.temperature", Kind.UNUSED)),
        ({"ref": {"path": "r"}}, ("ref.path", Kind.UNUSED)),
        ({"actor": {"optim": {"betas": [2.0, -1.0]}}}, ("actor.optim.betas.0", Kind.WRONG_VALUE)),
        ({"actor": {"clip_ratio_low": 1.5}}, ("actor.clip_ratio_low", Kind.WRONG_VALUE)),
        ({"rollout": {"top_k": 0}}, ("rollout.top_k", Kind.WRONG_VALUE)),
        ({"actor": {"optim": {"muon_lr": 0.1}}}, ("actor.optim.muon_lr", Kind.UNUSED)),
        ({"actor": {"optim": {"min_lr_ratio": 0.1}}}, ("actor.optim.min_lr_ratio", Kind.UNUSED)),
        ({"algorithm": {"name": "sft"}, "actor": {"clip_ratio": 0.1}}, ("actor.clip_ratio", Kind.UNUSED)),
    ],
)
def test_unsupported_options_are_refused_by_name(values, problem) -> None:
    with pytest.raises(ConfigError) as raised:
        validate_config({"model": MODEL, **values})
    assert problem in keys_and_kinds(raised.value.problems)


def test_sglang_accepts_options_of_the_embedded_engine() -> None:
    rollout = {"engine": "sglang", "deterministic": True, "dtype": "float32", "max_num_seqs": 8, "max_kv_tokens": 4096}
    assert validate_config({"model": MODEL, "rollout": rollout}).rollout.deterministic


@pytest.mark.parametrize(
    "correction", [{"bypass_mode": False}, {"rollout_rs": "token_k2", "rollout_rs_threshold": "0.5"}]
)
def test_the_policy_records_experts_if_it_computes_old_logprobs(correction) -> None:
    values = {"actor": {"routed_experts": True}, "algorithm": {"rollout_correction": correction}}
    assert validate_config({"model": MODEL, **values}).routed_by == "actor"


def test_a_default_that_an_earlier_version_saved_does_not_count_as_given() -> None:
    rollout = {"engine": "sglang", "sglang": {"urls": "http://node1:30000"}}
    assert validate_config({"model": MODEL, "rollout": {**rollout, "max_num_seqs": 128}}).rollout.max_num_seqs == 128
    with pytest.raises(ConfigError, match="max_num_seqs' has no effect"):
        validate_config({"model": MODEL, "rollout": {**rollout, "max_num_seqs": 64}})


def test_one_server_may_be_given_without_a_list() -> None:
    rollout = {"engine": "sglang", "sglang": {"urls": "http://node1:30000/"}}
    assert validate_config({"model": MODEL, "rollout": rollout}).rollout.sglang.urls == ("http://node1:30000",)


def test_all_mistakes_are_reported_together() -> None:
    with pytest.raises(ConfigError) as raised:
        validate_config({"rollout": {"n": 0, "tmperature": 1}})
    assert len(str(raised.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"rollout": {"n": 2}}, ("data.train_files", Kind.MISSING)),
        ({"data": {"train_files": "t"}, "rollout": {"n": 1}}, ("rollout.n", Kind.WRONG_VALUE)),
        (
            {"data": {"train_files": "t"}, "rollout": {"n": 2, "top_p": 0.9}},
            ("rollout.top_p", Kind.WRONG_VALUE),
        ),
        (
            {
                "data": {"train_files": "t", "train_batch_size": 6},
                "rollout": {"n": 2},
                "actor": {"ppo_mini_batch_size": 4},
            },
            ("actor.ppo_mini_batch_size", Kind.WRONG_VALUE),
        ),
        (
            {"data": {"train_files": "t"}, "rollout": {"n": 2}, "actor": {"use_dynamic_bsz": False}},
            ("actor.use_dynamic_bsz", Kind.MISSING),
        ),
        (
            {
                "data": {"train_files": "t"},
                "rollout": {"n": 2},
                "trainer": {"stop_when": {"metric": "val/success", "at_least": 1}},
            },
            ("trainer.stop_when", Kind.MISSING),
        ),
        (
            {
                "data": {"train_files": ["a"], "val_files": ["b"]},
                "rollout": {"n": 2},
                "trainer": {"log_val_generations": 4, "logger": ["console"]},
            },
            ("trainer.log_val_generations", Kind.MISSING),
        ),
    ],
)
def test_training_has_additional_rules(values, problem) -> None:
    config = validate_config({"model": MODEL, **values})
    with pytest.raises(ConfigError) as raised:
        check_training(config)
    assert problem in keys_and_kinds(raised.value.problems)


def test_valid_configuration_passes_and_is_immutable() -> None:
    config = validate_config({"model": MODEL, "data": {"train_files": "t.parquet"}, "rollout": {"n": 2}})
    check_training(config)
    assert config.data.train_files == ("t.parquet",)
    assert config.trainer.run_dir.as_posix() == "outputs/default"
    with pytest.raises(ValidationError):
        config.rollout.n = 3
    with pytest.raises(ConfigError, match="val_files"):
        check_evaluation(config)


def test_every_key_has_a_sentence() -> None:
    assert not [key for key, _, sentence in describe_config() if not sentence.endswith(".") and "\n" not in sentence]
    assert not [key for key, field in config_fields() if not field.description]


def test_a_saved_configuration_can_be_rerun_and_has_no_secret() -> None:
    config = validate_config(
        {"model": MODEL, "reward": {"custom_reward_function": {"reward_kwargs": {"api_key": "k"}}}}
    )
    kept = redacted(config)
    assert kept["reward"]["custom_reward_function"]["reward_kwargs"] == {"api_key": "(redacted)"}
    plain = validate_config({"model": MODEL})
    assert validate_config(redacted(plain)) == plain


@pytest.mark.parametrize(("section", "given"), [("critic", {}), ("reward.reward_model.online", {"outcome": "o.py"})])
def test_another_optimizer_key_keeps_the_default_learning_rate_of_a_head(section, given) -> None:
    values = {**given, "optim": {"weight_decay": 0.1}}
    for name in reversed(section.split(".")):
        values = {name: values}
    config = validate_config({"model": MODEL, **values})
    for name in (*section.split("."), "optim", "lr"):
        config = getattr(config, name)
    assert config == 1e-5
