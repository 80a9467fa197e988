"""Command-line keys and values that do not exist, and options that no code would read."""

from __future__ import annotations

import pytest

from agentrl.cli.main import main
from agentrl.config import validate_config
from agentrl.config.document import redacted
from agentrl.config.rules.combinations import check_training


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("rollot.n=3", "unknown key 'rollot': did you mean 'rollout'?"),
        ("rollout.nn=3", "unknown key 'rollout.nn': did you mean 'rollout.n'?"),
        ("rollout.val_kwargs.tmperature=3", "did you mean 'rollout.val_kwargs.temperature'?"),
        ("reward.custom_reward_function.pth=x", "did you mean 'reward.custom_reward_function.path'?"),
        ("rollout.lr=1", "unknown key 'rollout.lr': did you mean 'actor.optim.lr'?"),
        ("actor.optim.lr=fast", "'actor.optim.lr': input should be a valid number"),
        ("actor.optim.lr=inf", "'actor.optim.lr': input should be a finite number, got inf"),
        ("rollout.temperature=nan", "'rollout.temperature': input should be"),
        ("rollout.n=2.5", "'rollout.n': input should be a valid integer"),
        ("rollout.n=0", "'rollout.n': input should be greater than 0, got 0"),
        ("rollout=3", "'rollout': input should be a valid dictionary"),
        ("trainer.logger=[jsonl,consle]", "'trainer.logger.1': input should be 'console', 'jsonl'"),
        ("+experiment=calculater", "there is no experiment 'calculater': did you mean 'calculator'?"),
        ("rollout.multi_turn.format=hermess", "unknown tool parser 'hermess': did you mean 'hermes'?"),
        ("model.path=[", "no viable alternative at input '['"),
        ("rollout.n", "rollout.n"),
    ],
)
def test_unknown_keys_and_values_are_refused(bad, override, complaint):
    assert complaint in bad.refused(override)


IDLE = [
    (["trainer.total_epochs=3"], "'trainer.total_epochs' has no effect together with 'trainer.total_training_steps'"),
    (["trainer.test_freq=2"], "'trainer.test_freq' has no effect without 'data.val_files'"),
    (["rollout.val_kwargs.do_sample=true"], "'rollout.val_kwargs.do_sample' has no effect without 'data.val_files'"),
    (["actor.kl_loss_coef=0.1"], "'actor.kl_loss_coef' has no effect without 'actor.use_kl_loss=true'"),
    (["actor.kl_loss_type=mse"], "'actor.kl_loss_type' has no effect without 'actor.use_kl_loss=true'"),
    (["data.seed=3", "data.shuffle=false"], "'data.seed' has no effect without 'data.shuffle=true'"),
    (
        ["actor.clip_ratio=0.3", "actor.clip_ratio_low=0.2", "actor.clip_ratio_high=0.25"],
        "'actor.clip_ratio' has no effect together with 'actor.clip_ratio_low' and 'actor.clip_ratio_high'",
    ),
    (
        ["rollout.multi_turn.max_user_turns=2"],
        "'rollout.multi_turn.max_user_turns' has no effect without 'rollout.multi_turn.interaction_config_path'",
    ),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("overrides", "complaint"), IDLE)
def test_unused_options_are_refused(bad, overrides, complaint):
    assert bad.refused(*overrides) == complaint


def test_a_saved_configuration_with_every_key_passes():
    values = {"model": {"path": "m"}, "data": {"train_files": ["t"], "shuffle": False}, "rollout": {"n": 2}}
    clip = {"clip_ratio_low": 0.1, "clip_ratio_high": 0.2}
    config = validate_config({**values, "actor": clip, "trainer": {"total_training_steps": 3}})
    again = validate_config(redacted(config))
    check_training(again)
    assert again == config


def test_empty_val_files_allow_other_validation_keys():
    values = {"model": {"path": "m"}, "data": {"train_files": ["t"], "val_files": []}, "rollout": {"n": 2}}
    check_training(validate_config({**values, "trainer": {"test_freq": 2}}))


def test_verl_commands_may_give_unused_options_with_one_notice(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = [
        *("actor_rollout_ref.actor.use_kl_loss=False", "actor_rollout_ref.actor.kl_loss_coef=0.0"),
        *("actor_rollout_ref.rollout.val_kwargs.n=4", "actor_rollout_ref.rollout.val_kwargs.temperature=1.0"),
        *("trainer.total_training_steps=5", "trainer.total_epochs=2", "trainer.test_freq=5"),
        *("actor_rollout_ref.actor.clip_ratio=0.3", "data.shuffle=False", "data.seed=1"),
    ]
    needed = ["actor_rollout_ref.model.path=m", "algorithm.adv_estimator=grpo", "data.train_files=rows.jsonl"]
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}')
    sizes = [
        "data.train_batch_size=8",
        "actor_rollout_ref.actor.ppo_mini_batch_size=8",
        "actor_rollout_ref.rollout.n=2",
    ]
    assert main(["train", "--verl", *needed, *sizes, *given]) == 2
    *notices, error = capsys.readouterr().err.splitlines()
    # so the rest of the command was accepted
    assert error.startswith("agentrl: error: model.path: there is no folder 'm'")
    idle = [line.split("'")[1] for line in notices if "has no effect" in line]
    assert len(idle) == len(set(idle))
    assert {"actor_rollout_ref.actor.kl_loss_coef", "trainer.total_epochs", "data.seed", "trainer.test_freq"} <= {*idle}


def test_missing_config_folder(bad, tmp_path):
    folder = tmp_path / "no"
    assert bad.refused("--config-dir", str(folder)) == f"--config-dir: there is no folder '{folder}'"


def test_agent_loop_listing_must_be_yaml(bad):
    file = bad.write("loops.yaml", "- name: [a\n  b: }\n")
    line = bad.refused(f"rollout.agent.agent_loop_config_path={file}")
    assert f"in '{file}', line 2" in line
