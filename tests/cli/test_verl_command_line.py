"""verl's command line, its YAML files and the short form: complete runs of a tiny model, and one-line refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import yaml

from agentrl.cli.main import main
from agentrl.cli.verl.document import document
from agentrl.cli.verl.overrides import read_verl
from agentrl.cli.verl.short_form import SHORT
from agentrl.cli.verl.short_form import main as short_form
from agentrl.config import RunConfig
from agentrl.errors import ConfigError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A model with random weights and a context of 1024 tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "examples/calculator"))
        from tiny_model import make_model, make_tokenizer
    tokenizer = make_tokenizer(["<|im_start|>user\nWhat is 2 + 3?<|im_end|>\n"] * 4)
    folder = tmp_path_factory.mktemp("model")
    make_model(tokenizer, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """Change into an empty folder, with all variables of the short form unset."""
    monkeypatch.chdir(tmp_path)
    for short in SHORT:
        monkeypatch.delenv(short.variable or "_", raising=False)
    return tmp_path


def verl_row(split: str, index: int) -> dict[str, object]:
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"What is {index} + 3?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(index + 3)},
        "extra_info": {"split": split, "index": index},
    }


def write_parquet(folder: Path) -> None:
    for split, num_rows in (("train", 16), ("test", 4)):
        table = pyarrow.Table.from_pylist([verl_row(split, index) for index in range(num_rows)])
        pyarrow.parquet.write_table(table, folder / f"{split}.parquet")


def metrics(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


COMMAND = [
    "data.train_files=train.parquet",
    "data.val_files=test.parquet",
    "data.train_batch_size=16",
    "data.max_prompt_length=512",
    "data.max_response_length=16",
    "actor_rollout_ref.actor.optim.lr=1e-6",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.4",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4",
    "algorithm.adv_estimator=grpo",
    "algorithm.kl_ctrl.kl_coef=0.001",
    "trainer.logger=console",
    "trainer.val_before_train=False",
    "trainer.n_gpus_per_node=1",
    "trainer.nnodes=1",
    "trainer.save_freq=10",
    "trainer.test_freq=10",
    "trainer.total_epochs=3",
]


@pytest.mark.slow
def test_unchanged_verl_command_trains(model, here):
    write_parquet(here)
    command = [sys.executable, "-m", "agentrl.trainer.main_ppo", *COMMAND, f"actor_rollout_ref.model.path={model}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run = here / "outputs/gsm8k/latest"
    assert [row["step"] for row in metrics(run)] == [1, 2, 3]
    assert [row["actor/updates"] for row in metrics(run)] == [4.0] * 3
    assert "val/success" in metrics(run)[-1]
    said = [line for line in done.stderr.splitlines() if line.startswith("agentrl: notice:")]
    assert len(said) == len(set(said)) == 6
    assert sum("rollout.n=1" in line for line in said) == 1


VERLS_COMMAND = """\
PYTHONUNBUFFERED=1 python3 -m agentrl.trainer.main_ppo data.train_files=train.parquet data.val_files=test.parquet \
data.train_batch_size=16 data.max_prompt_length=512 data.max_response_length=256 actor_rollout_ref.model.path=MODEL \
actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.ppo_mini_batch_size=4 \
actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 \
actor_rollout_ref.rollout.tensor_model_parallel_size=1 actor_rollout_ref.rollout.gpu_memory_utilization=0.4 \
actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4 algorithm.adv_estimator=grpo algorithm.kl_ctrl.kl_coef=0.001 \
trainer.logger=console trainer.val_before_train=False trainer.n_gpus_per_node=1 trainer.nnodes=1 trainer.save_freq=10 \
trainer.test_freq=10 trainer.total_epochs=3
"""
SHORT_COMMAND = """\
./train.sh --model MODEL --rollout_n 8 --epochs 20 --reward_func ./my_reward.py --lr 5e-7 --kl_coef 0.01 --n_gpus 1 \
data.max_response_length=8
"""
REWARD = """\
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(len(solution_str))
"""


def typed(command: str, model: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command as typed into a shell, with this Python as `python3`."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)} | environment
    text = command.replace("MODEL", str(model))
    return subprocess.run(["bash", "-c", text], capture_output=True, text=True, env=variables, timeout=600)


@pytest.mark.slow
def test_verl_command_is_read_as_typed(model, here):
    write_parquet(here)
    done = typed(VERLS_COMMAND, model)
    assert done.returncode == 0, done.stderr
    run = here / "outputs/gsm8k/latest"
    assert [row["actor/updates"] for row in metrics(run)] == [4.0] * 3
    assert "val/success" in metrics(run)[-1]
    assert (run / "checkpoints/latest/model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("environment", [{}, {"TRAIN_BATCH_SIZE": "4", "USE_KL_LOSS": "False", "ROLLOUT_N": "2"}])
def test_short_form_is_read_as_typed(model, here, environment):
    rows = [{"prompt": f"What is {i}?", "ground_truth": str(i), "data_source": "mine"} for i in range(8)]
    (here / "train.json").write_text(json.dumps(rows))
    (here / "my_reward.py").write_text(REWARD)
    (here / "train.sh").symlink_to(ROOT / "train.sh")
    done = typed(SHORT_COMMAND, model, **environment, PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr
    run = here / "outputs/gsm8k/latest"
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert (config["rollout"]["n"], config["actor"]["use_kl_loss"], config["actor"]["kl_loss_coef"]) == (8, True, 0.01)
    batch_size = int(environment.get("TRAIN_BATCH_SIZE", 16))
    assert len(metrics(run)) == 20 * 8 // batch_size
    assert all("actor/kl_loss" in row for row in metrics(run))


@pytest.mark.slow
def test_short_form_trains_on_prompts_with_a_custom_reward(model, here, monkeypatch):
    rows = [{"prompt": f"What is {i}?", "ground_truth": str(i), "data_source": "mine"} for i in range(4)]
    (here / "train.json").write_text(json.dumps(rows))
    (here / "my_reward.py").write_text("def length(solution_str):\n    return float(len(solution_str))\n")
    monkeypatch.setenv("TRAIN_BATCH_SIZE", "4")
    monkeypatch.setenv("ROLLOUT_N", "3")
    monkeypatch.setenv("NORM_ADV_BY_STD", "0")
    flags = ["--model", str(model), "--train", "train.json", "--rollout_n", "2", "--epochs", "1", "--lr", "5e-7"]
    more = ["--reward_func", "./my_reward.py:length", "--kl_coef", "0.01", "--n_gpus", "1", "--name", "short"]
    assert short_form([*flags, "data.max_response_length=8", *more, "trainer.logger=file"]) == 0
    run = here / "outputs/short/latest"
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert (config["rollout"]["n"], config["data"]["train_batch_size"]) == (2, 4)  # a flag overrides the environment
    assert (config["actor"]["use_kl_loss"], config["actor"]["kl_loss_coef"]) == (True, 0.01)
    assert config["algorithm"]["norm_adv_by_std_in_grpo"] is False
    assert config["actor"]["optim"]["lr"] == 5e-7
    (row,) = metrics(run)
    assert row["reward/mean"] > 0
    assert "actor/kl_loss" in row


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["actor_rollout_ref.rollout.nn=3"], "did you mean 'actor_rollout_ref.rollout.n'?"),
        (["actor_rollout_ref.rollout.name=vllm"], "set actor_rollout_ref.rollout.name to sglang"),
        (["actor_rollout_ref.rollout.tensor_model_parallel_size=2"], "use SGLang: actor_rollout_ref.rollout"),
        (["rollout.engine=sglang", "rollout.device=cuda", "data.train_batch_size=256"], "'rollout.device' has no"),
        (["actor_rollout_ref.rollout.n=two"], "'actor_rollout_ref.rollout.n'"),  # agentrl's key is rollout.n
        (["actor_rollout_ref.rollout.top_p=0.9"], "'actor_rollout_ref.rollout.top_p'"),
        (["data.train_batch_size=100"], "'actor_rollout_ref.actor.ppo_mini_batch_size=256'"),
        (["data.train_files=a,b"], "data.train_files=[a,b]"),
        (["~data.train_files"], "a key cannot be removed"),
        (["trainer.experiment_name=${trainer.nme}"], "trainer.nme"),
        (["--config-name=ppo_veomni_trainer"], "there is no file"),
    ],
)
def test_mistakes_are_one_line_in_verls_words(overrides, complaint, here, capsys):
    needed = ["actor_rollout_ref.model.path=m", "algorithm.adv_estimator=grpo", "data.train_files=x.json"]
    (here / "x.json").write_text("[]")
    assert main(["train", "--verl", *needed, *overrides]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert complaint in said[0]


@pytest.mark.parametrize("arguments", [["actor_rollout_ref.rollout.n=2"], ["--config-name=gsm8k"]])
def test_verl_keys_without_the_verl_flag_give_a_hint(arguments, here, capsys):
    assert main(["train", "model.path=m", *arguments]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "--verl" in said


def test_keys_may_precede_or_follow_flags(here, capsys):
    assert main(["train", "--verl", "data.trian_files=a", "--config-path", str(here), "trainer.seeed=1"]) == 2
    assert "there is no file" in capsys.readouterr().err
    (here / "ppo_trainer.yaml").write_text("{}\n")
    assert main(["train", "--verl", "data.trian_files=a", "--config-path", str(here), "trainer.seeed=1"]) == 2
    assert [line.split("'")[1] for line in capsys.readouterr().err.splitlines()][:2] == [
        "data.trian_files",
        "trainer.seeed",
    ]
    with pytest.raises(SystemExit):
        main(["train", "--verl", "a.b=c", "--no-such-flag"])


@pytest.mark.slow
def test_refusal_comes_before_anything_heavy_loads(here):
    script = (
        "import sys; from agentrl.cli.main import main;"
        "status = main(['train', '--verl', 'algorithm.use_pf_ppo=true']);"
        "print(status, sorted({'torch', 'transformers', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "2 []"
    assert "'algorithm.use_pf_ppo=True' is not supported" in done.stderr


def test_command_line_overrides_verl_yaml_files(here):
    # a key that is not set, here project_name, gets verl's default in an interpolation
    (here / "mine.yaml").write_text(
        "hydra: {searchpath: [file://verl/trainer/config]}\ndefaults: [ppo_trainer, _self_]\n"
        "data: {train_batch_size: 8, max_response_length: 64}\n"
        "trainer: {default_local_dir: 'runs/${trainer.project_name}/${trainer.experiment_name}'}\n"
    )
    values = read_verl(["+data.train_batch_size=4", "trainer.experiment_name=e"], here, "mine")
    assert values == {
        "data": {"train_batch_size": 4, "max_response_length": 64},
        "trainer": {
            "default_local_dir": "runs/verl_examples/e",
            "experiment_name": "e",
        },
    }
    (here / "other.yaml").write_text("defaults: [ppo_veomni_trainer]\n")
    with pytest.raises(ConfigError, match="builds on 'ppo_veomni_trainer'; only ppo_trainer, ppo_megatron_trainer are"):
        read_verl([], here, "other")


@pytest.mark.parametrize(
    ("folder", "name"),
    [(None, "ppo_megatron_trainer"), (Path("config"), "ppo_megatron_trainer.yaml"), (Path(), "mine"), (Path(), "own")],
)
def test_verls_file_for_megatron_selects_megatron(here, monkeypatch, folder, name):
    monkeypatch.chdir(here)
    (here / "mine.yaml").write_text("defaults: [ppo_megatron_trainer, _self_]\ndata: {train_batch_size: 8}\n")
    (here / "own.yaml").write_text("actor_rollout_ref: {actor: {strategy: megatron}}\ndata: {train_batch_size: 8}\n")
    values = read_verl(["data.train_batch_size=8"], folder, name)
    assert values == {"data": {"train_batch_size": 8}, "actor_rollout_ref": {"actor": {"strategy": "megatron"}}}


@pytest.mark.parametrize(
    ("arguments", "variable", "complaint"),
    [
        (["--rollout_n", "many"], "", "--rollout_n: expected a whole number, got 'many'"),
        (["--n_gpus", "many"], "", "--n_gpus: expected a whole number, got 'many'"),
        ([], "perhaps", "NORM_ADV_BY_STD: expected true or false, got 'perhaps'"),
        (["--rollout-n", "2", "--train", "x.json"], "1", "'actor_rollout_ref.model.path' must be given"),
    ],
)
def test_mistakes_in_the_short_form_are_one_line(arguments, variable, complaint, here, monkeypatch, capsys):
    monkeypatch.setenv("NORM_ADV_BY_STD", variable)
    assert short_form(arguments) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert complaint in said[0]


def short_config(arguments: list[str], monkeypatch) -> RunConfig:
    """The configuration that the short form would train with."""
    configs: list[RunConfig] = []
    Path("x.json").write_text("[]")
    monkeypatch.setattr("agentrl.trainer.run.run_training", configs.append)
    assert short_form(["--model", "m", *arguments]) == 0
    return configs[0]


def test_every_variable_of_the_short_form_is_read(here, monkeypatch):
    environment = {
        "ROLLOUT_N": "4",
        "NORM_ADV_BY_STD": "False",
        "USE_KL_LOSS": "True",
        "KL_LOSS_COEF": "0.002",
        "KL_LOSS_TYPE": "k2",
        "TRAIN_BATCH_SIZE": "32",
        "LEARNING_RATE": "3e-6",
        "TOTAL_EPOCHS": "7",
        "MAX_RESPONSE_LENGTH": "99",
    }
    assert set(environment) == {short.variable for short in SHORT if short.variable}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    config = short_config(["--train", "x.json"], monkeypatch)
    actor, data = config.actor, config.data
    assert (config.rollout.n, config.algorithm.norm_adv_by_std_in_grpo) == (4, False)
    assert (actor.use_kl_loss, actor.kl_loss_coef, actor.kl_loss_type, actor.optim.lr) == (True, 0.002, "k2", 3e-6)
    assert (data.train_batch_size, data.max_response_length, config.trainer.total_epochs) == (32, 99, 7)


def test_key_overrides_flag_overrides_environment(here, monkeypatch):
    monkeypatch.setenv("KL_LOSS_COEF", "0.5")
    monkeypatch.setenv("USE_KL_LOSS", "False")
    flags = ["--train", "x.json", "--kl_coef", "0.01", "--rollout_n", "8"]
    actor = short_config(flags, monkeypatch).actor
    assert (actor.use_kl_loss, actor.kl_loss_coef) == (True, 0.01)
    config = short_config([*flags, "algorithm.kl_penalty=0.02", "algorithm.group_size=3"], monkeypatch)
    assert (config.actor.kl_loss_coef, config.rollout.n) == (0.02, 3)


def test_missing_train_files_use_the_default_file(here, monkeypatch, capsys):
    (here / "train.json").write_text("[]")
    assert short_config([], monkeypatch).data.train_files == ("train.json",)
    assert "no --train is given: training on 'train.json'" in capsys.readouterr().err
    assert short_config(["data.train_files=x.json"], monkeypatch).data.train_files == ("x.json",)
    assert "no --train" not in capsys.readouterr().err


@pytest.mark.slow
def test_the_script_at_the_root_is_the_short_form(here):
    done = subprocess.run(
        [ROOT / "train.sh", "--lr", "high"], capture_output=True, text=True, env={"PYTHON": sys.executable}
    )
    assert done.returncode == 2
    assert done.stderr.strip() == "agentrl: error: --lr: expected a number, got 'high'"


def test_train_sh_reports_an_unusable_python(here):
    bare = here / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)
    for python in (bare, here / "absent"):
        done = subprocess.run([ROOT / "train.sh"], capture_output=True, text=True, env={"PYTHON": str(python)})
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"agentrl: error: '{python}' does not have what agentrl needs: ")


def test_from_verl_page_is_up_to_date():
    assert (ROOT / "docs/from-verl.md").read_text(encoding="utf-8") == document(), (
        "run python -m agentrl.cli.verl.document"
    )
