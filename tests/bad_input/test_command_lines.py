"""Wrong command lines: each mistake gives one line with the expected value, before any slow import."""

from __future__ import annotations

import struct

import pytest

from agentrl.cli.main import main

# overrides of a valid `agentrl train` -> the expected error
VALUES = {
    "model.path=": "model.path",
    "model.path=no/such/folder": "there is no folder 'no/such/folder'",
    "model.path=./nowhere": "there is no folder",
    "model.path=[a,b]": "'model.path': input should be a valid string",
    "model.path=[": "cannot read 'model.path=['",
    "model.path=a,b": "has several values",
    "model.tokenizer_path=./nowhere": "model.tokenizer_path: there is no folder",
    "model.chat_template=no.jinja": "'model.chat_template': there is no file 'no.jinja'",
    "model.dtype=int8": "'model.dtype': input should be 'auto', 'float32'",
    "model.lora_rank=-1": "'model.lora_rank'",
    "model.lora_rank=big": "'model.lora_rank': input should be a valid integer",
    "model.lora_alpha=0": "'model.lora_alpha'",
    "model.lora_alpha=8": "'model.lora_alpha' has no effect without",
    "model.trust_remote_code=perhaps": "'model.trust_remote_code': input should be a valid boolean",
    "model=3": "'model'",
    "model.paht=x": "did you mean 'model.path'?",
    "data.train_files=[]": "'data.train_files' must be given",
    "data.train_files=no.jsonl": "no.jsonl: no such file",
    "data.train_files=[no.jsonl,nor.parquet]": "nor.parquet: no such file",
    "data.train_files=rows.txt": "expected a file that ends in",
    "data.train_files=rows.jsnl": "expected a file that ends in",
    "data.train_files=3": "'data.train_files': input should be a valid tuple",
    "data.train_files={a: b}": "'data.train_files': input should be a valid tuple",
    "data.val_files=no.jsonl": "data.val_files: no.jsonl: no such file",
    "data.val_file=a": "did you mean 'data.val_files'?",
    "data.train_batch_size=0": "'data.train_batch_size': input should be greater than 0",
    "data.train_batch_size=many": "'data.train_batch_size': input should be a valid integer",
    "data.train_batch_size=1.5": "'data.train_batch_size': input should be a valid integer",
    "data.batch_size=3": "unknown key 'data.batch_size'",
    "data.max_prompt_length=-5": "'data.max_prompt_length'",
    "data.max_response_length=null": "'data.max_response_length'",
    "data.truncation=up": "'data.truncation': input should be 'error', 'left'",
    "data.shuffle=sometimes": "'data.shuffle': input should be a valid boolean",
    "data.seed=x": "'data.seed': input should be a valid integer",
    "data.train_max_samples=-2": "'data.train_max_samples'",
    "data.dataset_weights=[1,2]": "'data.dataset_weights' needs one weight per train file",
    "data.dataset_weights=[-1]": "'data.dataset_weights.0'",
    "data.curriculum.target=0.3": "'data.curriculum.target' has no effect without",
    "data.custom_cls.path=mine.py": "set both path (a Python file) and name",
    "data.output_path=a.parquet": "'data.output_path' has no effect without",
    "data.output_path=a.csv": "'data.output_path' must name a Parquet file",
    "rollout.n=0": "'rollout.n': input should be greater than 0",
    "rollout.n=1": "'rollout.n=1' makes every advantage 0",
    "rollout.n=two": "'rollout.n': input should be a valid integer",
    "rollout.n=[8]": "'rollout.n': input should be a valid integer",
    "rollout.temperature=-1": "'rollout.temperature'",
    "rollout.temperature=0": "'rollout.temperature=0' means greedy sampling",
    "rollout.temperature=nan": "'rollout.temperature': input should be",
    "rollout.temperature=.inf": "'rollout.temperature'",
    "rollout.top_p=0": "'rollout.top_p'",
    "rollout.top_p=0.9": "'rollout.top_p' changes the sampling distribution",
    "rollout.top_k=0": "'rollout.top_k': expected 1 or more, or -1 for all",
    "rollout.top_k=50": "'rollout.top_k' changes the sampling distribution",
    "rollout.min_p=0.1": "'rollout.min_p' changes the sampling distribution",
    "rollout.engine=vllm": "'rollout.engine': expected scripted, sglang, torch or",
    "rollout.engine=scripted": "needs 'rollout.script_path'",
    "rollout.script_path=a.py:f": "'rollout.script_path' has no effect without",
    "rollout.sglang.num_replicas=2": "'rollout.sglang.num_replicas' has no effect without",
    "rollout.sglang.urls=[node1]": "expected an address such as",
    "rollout.max_num_seqs=0": "'rollout.max_num_seqs'",
    "rollout.device=[]": "'rollout.device'",
    "rollout.val_kwargs.n=2": "repeats the same greedy rollout",
    "rollout.val_kwargs.temperature=0.5": "'rollout.val_kwargs.temperature' has no effect without",
    "rollout.agent.default_agent_loop=tool_agnt": "did you mean 'tool_agent'?",
    "rollout.agent.default_agent_loop=mine.py:Loop": "there is no file 'mine.py'",
    "rollout.agent.agent_loop_config_path=no.yaml": "there is no file 'no.yaml'",
    "rollout.multi_turn.format=hermess": "did you mean 'hermes'?",
    "rollout.multi_turn.tool_config_path=no.yaml": "there is no file 'no.yaml'",
    "rollout.multi_turn.function_tool_path=no.py": "there is no file 'no.py'",
    "rollout.multi_turn.function_tool_path=.": "expected a file, '.' is a folder",
    "rollout.multi_turn.interaction_config_path=no.yaml": "there is no file 'no.yaml'",
    "rollout.multi_turn.max_turns=3": "did you mean 'rollout.multi_turn.max_assistant_turns'?",
    "rollout.multi_turn.max_assistant_turns=0": "'rollout.multi_turn.max_assistant_turns'",
    "rollout.multi_turn.max_user_turns=2": "'rollout.multi_turn.max_user_turns' has no effect without",
    "rollout.multi_turn.tool_timeout_s=-1": "'rollout.multi_turn.tool_timeout_s'",
    "rollout.multi_turn.tool_response_truncate_side=top": "input should be 'left', 'middle' or 'right'",
    "rollot.n=3": "unknown key 'rollot': did you mean 'rollout'?",
    "rollout.nn=3": "did you mean 'rollout.n'?",
    "rollout.lr=1": "did you mean 'actor.optim.lr'?",
    "rollout=3": "'rollout': input should be a valid dictionary",
    "rollout.n.x=3": "'rollout.n'",
    "actor.optim.lr=fast": "'actor.optim.lr': input should be a valid number",
    "actor.optim.lr=0": "'actor.optim.lr': input should be greater than 0",
    "actor.optim.lr=-1e-6": "'actor.optim.lr'",
    "actor.optim.lr=inf": "'actor.optim.lr': input should be a finite number",
    "actor.optim.name=sgd": "'actor.optim.name': input should be 'adamw' or 'muon'",
    "actor.optim.betas=[0.9]": "'actor.optim.betas",
    "actor.optim.betas=[2,-1]": "'actor.optim.betas.0'",
    "actor.optim.muon_lr=0.1": "'actor.optim.muon_lr' has no effect without",
    "actor.optim.min_lr_ratio=0.1": "'actor.optim.min_lr_ratio' has no effect without",
    "actor.optim.lr_scheduler_type=step": "'actor.optim.lr_scheduler_type': input should be",
    "actor.optim.weight_decay=-1": "'actor.optim.weight_decay'",
    "actor.backend=fsdp": "'actor.backend': expected megatron, torch or path/to/file.py:NAME",
    "actor.ppo_mini_batch_size=3": "must divide 'data.train_batch_size'",
    "actor.ppo_epochs=0": "'actor.ppo_epochs'",
    "actor.use_dynamic_bsz=false": "needs 'actor.ppo_micro_batch_size_per_gpu'",
    "actor.kl_loss_coef=0.1": "'actor.kl_loss_coef' has no effect without",
    "actor.kl_loss_type=k9": "'actor.kl_loss_type': input should be",
    "actor.clip_ratio_low=1.5": "'actor.clip_ratio_low'",
    "actor.clip_ratio_c=1.1": "clip_ratio_c must be above 1 + clip_ratio_high",
    "actor.loss_agg_mode=mean": "'actor.loss_agg_mode': input should be",
    "actor.policy_loss.loss_mode=gsp": "'actor.policy_loss.loss_mode': unknown policy loss 'gsp'",
    "actor.policy_loss.loss_mode=mine.py:f": "there is no file 'mine.py'",
    "actor.grad_clip=0": "'actor.grad_clip'",
    "ref.path=./nowhere": "'ref.path' has no effect without",
    "critic.path=./nowhere": "'critic.path' has no effect without",
    "critic.optim.lr=-1": "'critic.optim.lr'",
    "algorithm.name=grp": "unknown algorithm 'grp': did you mean 'grpo'?",
    "algorithm.name=ppo": "unknown algorithm 'ppo'",
    "algorithm.name=null": "'algorithm.name': input should be a valid string",
    "algorithm.adv_estimator=grrpo": "unknown advantage estimator 'grrpo': did you mean 'grpo'?",
    "algorithm.adv_estimator=mine.py:f": "there is no file 'mine.py'",
    "algorithm.gamma=2": "'algorithm.gamma'",
    "algorithm.beta=0": "'algorithm.beta'",
    "algorithm.beta=0.2": "'algorithm.beta' has no effect without",
    "algorithm.kl_ctrl.kl_coef=0.1": "'algorithm.kl_ctrl.kl_coef' has no effect without",
    "algorithm.filter_groups.metric=acc": "'algorithm.filter_groups.metric' has no effect without",
    "algorithm.rollout_correction.rollout_is=tokn": "input should be 'token' or 'sequence'",
    "algorithm.rollout_correction.rollout_is_threshold=3": "has no effect without",
    "algorithm.rollout_correction.rollout_is_threshold=0.2_0.5": "write both bounds with a decimal point",
    "algorithm.rollout_correction.rollout_rs=nothing": "unknown rejection 'nothing'",
    "algorithm.rft_threshold=0.5": "'algorithm.rft_threshold' has no effect without",
    "reward.name=gsm9k": "unknown reward 'gsm9k': did you mean 'gsm8k'?",
    "reward.name=none": "'reward.name=none' is for `agentrl generate`",
    "reward.custom_reward_function.path=no.py": "there is no file 'no.py'",
    "reward.custom_reward_function.pth=x": "did you mean 'reward.custom_reward_function.path'?",
    "reward.custom_reward_function.name=f": "'reward.custom_reward_function.name' has no effect without",
    "reward.timeout_s=0": "'reward.timeout_s'",
    "reward.range=[1,0]": "range must be [lowest, highest]",
    "reward.reward_manager.name=fast": "name must be naive, batch",
    "reward.batch_size=3": "batch_size has no effect without",
    "reward.judge.model=x": "'reward.judge.model' has no effect without",
    "trainer.total_epochs=0": "'trainer.total_epochs'",
    "trainer.total_training_steps=none": "'trainer.total_training_steps': input should be a valid integer",
    "trainer.mode=fly": "'trainer.mode': input should be",
    "trainer.mode=train_only": "'trainer.mode=train_only' needs 'trainer.saved_rollouts'",
    "trainer.mode=val_only": "needs 'data.val_files'",
    "trainer.saved_rollouts=x": "'trainer.saved_rollouts' has no effect without",
    "trainer.test_freq=2": "'trainer.test_freq' has no effect without 'data.val_files'",
    "trainer.save_best=val/success": "'trainer.save_best' has no effect without",
    "trainer.stop_when.metric=x": "'trainer.stop_when.at_least' must be given",
    "trainer.logger=[consle]": "'trainer.logger.0': input should be 'console'",
    "trainer.resume_mode=maybe": "'trainer.resume_mode': input should be",
    "trainer.resume_mode=path": "needs 'trainer.resume_from_path'",
    "trainer.resume_from_path=x": "'trainer.resume_from_path' has no effect without",
    "trainer.max_staleness=-1": "'trainer.max_staleness'",
    "trainer.seed=a": "'trainer.seed': input should be a valid integer",
    "trainer=null": "'trainer': input should be a valid dictionary",
    "nonsense=1": "unknown key 'nonsense'",
    "rollout.n": "a key needs a value, 'rollout.n=VALUE'",
    "rollout.n:": "a key needs a value, 'rollout.n=VALUE'",
    "rollout.n: 4": "a key needs a value, 'rollout.n=VALUE'",
    "=": "write key=value without spaces",
    "a b": "cannot read 'a b'",
    "=3": "cannot read '=3'",
    "~rollout.n": "neither an experiment nor an override sets rollout.n",
    "+experiment=": "names no experiment",
    "+experiment=nope": "there is no experiment 'nope'",
    "+experiment=calculater": "did you mean 'calculator'?",
    "experiment=3": "there is no experiment '3'",
    "rollout.n=choice(1,2)": "has several values",
    "rollout.n=range(1,4)": "has several values",
    "model.path={": "cannot read",
    "model.path=${nope}": "nope",
    "model.path=${oc.env:NO_SUCH_VARIABLE}": "NO_SUCH_VARIABLE",
    "actor_rollout_ref.rollout.n=2": "is a verl key",
}
"""Single mistakes."""


@pytest.fixture
def good(tmp_path, monkeypatch) -> list[str]:
    """The shortest valid training command, up to loading the model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    (tmp_path / "model/model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}')
    (tmp_path / "rows.txt").write_text("a")
    return ["model.path=./model", "data.train_files=rows.jsonl"]


def lines_of(capsys, *words: str) -> list[str]:
    """The error lines of a refused command."""
    try:
        status = main(words)
    except SystemExit as ended:
        status = ended.code
    said = capsys.readouterr()
    assert status == 2, said
    assert "Traceback" not in said.err
    return [line.removeprefix("agentrl: error: ") for line in said.err.splitlines()]


def test_at_least_150_invalid_values_are_tested():
    assert len(VALUES) >= 150


@pytest.mark.one_in(40)
@pytest.mark.parametrize(("word", "complaint"), VALUES.items())
def test_mistakes_are_one_line_errors(good, capsys, word, complaint):
    lines = lines_of(capsys, "train", *good, word)
    assert any(complaint in line for line in lines), lines
    assert len(lines) <= 2, lines


def test_all_mistakes_of_a_command_are_reported_together(good, capsys):
    mistakes = [
        "rollout.nn=3",
        "actor.optim.lr=fast",
        "rollout.top_p=0.9",
        "data.val_files=no.jsonl",
        "rollout.multi_turn.function_tool_path=no.py",
        "reward.name=gsm9k",
        "algorithm.adv_estimator=grrpo",
        "+experiment=nope",
        "rollout.engine",
    ]
    lines = lines_of(capsys, "train", *good, *mistakes)
    assert len(lines) == len(mistakes)
    for word in mistakes:
        assert sum(VALUES.get(word, "needs a value") in line for line in lines) == 1, (word, lines)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["trian"], "unknown command 'trian': did you mean 'train'?"),
        (["xyz"], "unknown command 'xyz': valid: "),
        (["train", "--model", "x"], "'model.path=VALUE'"),
        (["train", "--rollout.n=3"], "'rollout.n=3'"),
        (["train", "--lr", "1"], "'actor.optim.lr=VALUE'"),
        (["train", "--verll"], "did you mean '--verl'?"),
        (["train", "--config", "no.yaml"], "--config: expected an existing .yaml file"),
        (["train", "--config-dir", "no"], "--config-dir: there is no folder"),
        (["train", "--resume", "no"], "--resume: 'no' contains no run"),
        (["train", "--verl", "--config", "a/b.yaml"], "with --verl use --config-dir a --config-name b"),
        (["eval", "--verl", "--config", "b.yaml"], "with --verl use --config-dir . --config-name b"),
        (["generate", "--verl", "--config", "b.yaml"], "with --verl use --config-dir . --config-name b"),
        (["train", "--config-name", "x"], "--config-name needs --verl"),
        (["eval"], "'data.val_files' must be given"),
        (["generate"], "'data.train_files' must be given"),
        (["eval", "--from", "a", "--responses", "b"], "give one of them"),
        (["eval", "--json", "a"], "--json needs"),
        (["config", "temperetur"], "no key contains 'temperetur'"),
        (["completion", "tcsh"], "invalid choice: 'tcsh'"),
        (["export", "no", "new"], "there is no folder 'no'"),
        (["data", "check"], "no files to check"),
        (["replay", "no"], "missing mode for 'no'"),
        (["replay", "no", "adit"], "did you mean 'audit'?"),
        (["view"], "the following arguments are required: RUN"),
    ],
)
def test_mistakes_of_other_commands_are_one_line(good, capsys, words, complaint):
    lines = lines_of(capsys, *words)
    assert any(complaint in line for line in lines), lines


def test_command_line_overrides_the_config_file(good, tmp_path, capsys):
    (tmp_path / "run.yaml").write_text(
        "defaults: [experiment/calculator, _self_]\nactor.optim.lr: 3.0e-5\nrollout.n: 4\nrollout: {temperature: 0.7}\n"
    )
    assert main(["train", "--config", "run.yaml", *good, "data.val_files=rows.jsonl", "rollout.n=2", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {line}\n" in shown for line in ("actor.optim.lr=3e-05", "rollout.n=2", "rollout.temperature=0.7"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "rows.jsonl", "rows.txt", "run.yaml"]


def test_a_dry_run_shows_what_was_chosen(good, capsys):
    assert main(["train", *good, "--dry-run"]) == 0
    assert "  rollout.n=8  (chosen: grpo compares the rollouts of a task)\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["learning_rate"], "actor.optim.lr"),
        (["learning", "rate"], "actor.optim.lr"),
        (["lr"], "actor.optim.lr"),
        (["batch size"], "data.train_batch_size"),
        (["kl"], "actor.use_kl_loss"),
        (["group", "size"], "rollout.n"),
        (["nucleus"], "rollout.top_p"),
    ],
)
def test_keys_are_found_by_usual_names_and_by_their_sentences(capsys, words, key):
    assert main(["config", *words]) == 0
    assert f"{key} = " in capsys.readouterr().out


def test_help_without_a_word_and_of_train(capsys):
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 0
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    shown = capsys.readouterr().out
    assert "agentrl train +experiment=calculator algorithm.name=gspo" in shown
    assert "actor.optim.lr=null" in shown


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_commands_flags_and_keys(capsys, shell):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(word in script for word in ("export-rollouts", "dry-run", "actor.optim.lr=", "+experiment=calculator"))
