import pytest
from pydantic import ValidationError

from agentrl.config import validate_config
from agentrl.config.document import describe_config, redacted
from agentrl.config.rules.combinations import check_evaluation, check_training
from agentrl.config.validate import config_fields
from agentrl.errors import ConfigError

MODEL = {"path": "m"}


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"rollout": {"nn": 3}}, "unknown key 'rollout.nn': did you mean 'rollout.n'?"),
        ({"rollout": {"lr": 1}}, "unknown key 'rollout.lr': did you mean 'actor.optim.lr'?"),
        ({"rollot": {}}, "unknown key 'rollot': did you mean 'rollout'?"),
        ({"rollout": {"n": "many"}}, "'rollout.n': input should be a valid integer"),
        ({"rollout": {"engine": "vllm"}}, "'rollout.engine': expected scripted, sglang, torch or path/to/file.py:NAME"),
        ({"actor": {"clip_ratio_c": 1.1}}, "'actor': clip_ratio_c must be above 1 + clip_ratio_high, 1.2"),
        ({"rollout": {"engine": "sglang", "device": "cuda"}}, "'rollout.device' has no effect without"),
        ({"rollout": {"sglang": {"num_replicas": 2}}}, "'rollout.sglang.num_replicas' has no effect without"),
        (
            {"rollout": {"engine": "sglang", "sglang": {"urls": ["http://a"], "num_replicas": 2}}},
            "'rollout.sglang.num_replicas' has no effect without servers that are started here",
        ),
        (
            {"rollout": {"engine": "sglang", "dtype": "bfloat16", "sglang": {"urls": ["http://a"]}}},
            "'rollout.dtype' has no effect without servers that are started here",
        ),
        (
            {"rollout": {"engine": "sglang", "sglang": {"router_url": "http://r"}}},
            "'rollout.sglang.router_url' has no effect without 'rollout.sglang.urls'",
        ),
        (
            {
                "rollout": {
                    "engine": "sglang",
                    "routed_experts": True,
                    "sglang": {"urls": ["http://a"], "router_url": "http://r"},
                }
            },
            "sglang-router does not forward 'rollout.routed_experts'",
        ),
        (
            {"rollout": {"sglang": {"urls": ["node1:30000"]}}},
            "'rollout.sglang.urls.0': expected an address such as 'http",
        ),
        ({"rollout": {"sglang": {"urls": ["http://a", "http://a/"]}}}, "urls': a server is listed twice, got"),
        ({"rollout": {"sglang": {"router_url": "r"}}}, "'rollout.sglang.router_url': expected an address such as"),
        ({"rollout": {"routed_experts": True}}, "'rollout.routed_experts' has no effect without 'rollout.engine="),
        (
            {"algorithm": {"name": "sft"}, "rollout": {"engine": "sglang", "routed_experts": True}},
            "'rollout.routed_experts' has no effect without live rollouts",
        ),
        ({"actor": {"backend": "megatron"}}, "use 'actor.backend=torch'"),
        ({"rollout": {"engine": "scripted"}}, "needs 'rollout.script_path'"),
        ({"rollout": {"script_path": "s.py"}}, "'rollout.script_path' has no effect without"),
        ({"rollout": {"engine": "scripted", "script_path": "s", "deterministic": True}}, "'rollout.deterministic' has"),
        ({"rollout": {"val_kwargs": {"n": 2}}}, "repeats one greedy rollout"),
        ({"rollout": {"val_kwargs": {"temperature": 0.5}}}, "'rollout.val_kwargs.temperature' has no effect"),
        ({"reward": {"custom_reward_function": {"name": "f"}}}, "'reward.custom_reward_function.name' has no effect"),
        ({"reward": {"name": "gsm8k", "custom_reward_function": {"path": "f.py"}}}, "'reward.name' has no effect"),
        ({"algorithm": {"name": "sft"}, "rollout": {"temperature": 0.5}}, "'rollout.temperature' has no effect"),
        ({"ref": {"path": "r"}}, "'ref.path' has no effect without a reference: 'actor.use_kl_loss=true'"),
        ({"actor": {"optim": {"betas": [2.0, -1.0]}}}, "'actor.optim.betas.0': input should be less than 1"),
        ({"actor": {"clip_ratio_low": 1.5}}, "'actor.clip_ratio_low': input should be less than or equal to 1"),
        ({"rollout": {"top_k": 0}}, "'rollout.top_k': expected 1 or more, or -1 for all"),
        ({"actor": {"optim": {"muon_lr": 0.1}}}, "'actor.optim.muon_lr' has no effect without"),
        ({"actor": {"optim": {"min_lr_ratio": 0.1}}}, "'actor.optim.min_lr_ratio' has no effect without"),
        ({"algorithm": {"name": "sft"}, "actor": {"clip_ratio": 0.1}}, "'actor.clip_ratio' has no effect without"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(values, complaint) -> None:
    with pytest.raises(ConfigError) as raised:
        validate_config({"model": MODEL, **values})
    assert complaint in str(raised.value)


def test_sglang_takes_what_an_experiment_sets_for_the_embedded_engine() -> None:
    rollout = {"engine": "sglang", "deterministic": True, "dtype": "float32", "max_num_seqs": 8, "max_kv_tokens": 4096}
    assert validate_config({"model": MODEL, "rollout": rollout}).rollout.deterministic


def test_one_server_may_be_given_without_a_list() -> None:
    rollout = {"engine": "sglang", "sglang": {"urls": "http://node1:30000/"}}
    assert validate_config({"model": MODEL, "rollout": rollout}).rollout.sglang.urls == ("http://node1:30000",)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        validate_config({"rollout": {"n": 0, "tmperature": 1}})
    assert len(str(raised.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"rollout": {"n": 2}}, "'data.train_files' must be given"),
        ({"data": {"train_files": "t"}, "rollout": {"n": 1}}, "'rollout.n=1' gives every group advantage 0"),
        (
            {"data": {"train_files": "t"}, "rollout": {"n": 2, "top_p": 0.9}},
            "'rollout.top_p' changes the sampling distribution",
        ),
        (
            {
                "data": {"train_files": "t", "train_batch_size": 6},
                "rollout": {"n": 2},
                "actor": {"ppo_mini_batch_size": 4},
            },
            "must divide 'data.train_batch_size'",
        ),
        (
            {"data": {"train_files": "t"}, "rollout": {"n": 2}, "actor": {"use_dynamic_bsz": False}},
            "'actor.use_dynamic_bsz=false' needs 'actor.ppo_micro_batch_size_per_gpu'",
        ),
        (
            {
                "data": {"train_files": "t"},
                "rollout": {"n": 2},
                "trainer": {"stop_when": {"metric": "val/success", "at_least": 1}},
            },
            "'trainer.stop_when' needs",
        ),
        (
            {
                "data": {"train_files": ["a"], "val_files": ["b"]},
                "rollout": {"n": 2},
                "trainer": {"log_val_generations": 4, "logger": ["console"]},
            },
            "'trainer.log_val_generations' needs",
        ),
    ],
)
def test_training_has_rules_of_its_own(values, complaint) -> None:
    config = validate_config({"model": MODEL, **values})
    with pytest.raises(ConfigError, match=complaint):
        check_training(config)


def test_a_good_configuration_passes_and_is_frozen() -> None:
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


def test_what_is_kept_can_be_started_again_and_holds_no_secret() -> None:
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
