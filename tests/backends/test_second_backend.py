"""A backend in one file, selected by its path: the contract suite, and one training step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from backend_contract import *  # noqa: F403  # the suite every backend runs
from backend_contract import MakeBackend
from second_backend import PlainBackend
from tiny_models import save_model

from agentrl.backends.base import Backend, ModelRequest, load_backend
from agentrl.cli.main import main
from agentrl.config import validate_config
from agentrl.errors import ConfigError

test_files_written_while_training_goes_on_are_those_of_save = None  # it has no `begin_save`
test_a_critic_starts_at_zero_and_learns_the_returns = None  # it trains no critic
test_a_critic_resumes_bitwise_from_a_hugging_face_folder = None

ROOT = Path(__file__).parents[2]
NAME = "tests/backends/second_backend.py:SPEC"
FILE = f"{ROOT}/{NAME}"


@pytest.fixture
def make_backend(tmp_path_factory: pytest.TempPathFactory) -> MakeBackend:
    path = save_model(tmp_path_factory.mktemp("model"))

    def make(trainable: bool = True, **actor: object) -> Backend:
        values = {"backend": FILE, "optim": {"lr": 1e-2}, **actor}
        config = validate_config({"model": {"path": str(path)}, "actor": values})
        return load_backend(config, ModelRequest(config.model, config.actor, total_updates=10, trainable=trainable))

    return make


def test_configured_backend_is_used(make_backend: MakeBackend):
    assert type(make_backend()).__name__ == PlainBackend.__name__  # its file is imported under another module name


def test_value_head_unsupported_by_the_backend_is_refused(tmp_path: Path):
    config = validate_config({"model": {"path": str(tmp_path)}, "actor": {"backend": FILE}})
    with pytest.raises(ConfigError, match=r"'actor.backend=.*' trains no critic .*use .*'actor.backend=torch'"):
        load_backend(config, ModelRequest(config.model, config.actor, value_head=True))


def train(task_folder: Path, folder: Path, *overrides: str) -> int:
    """One step of the calculator task, with a copy of the policy as reference."""
    options = [
        *(f"model.path={task_folder}/model", f"data.train_files={task_folder}/train.jsonl", "data.val_files=[]"),
        *("data.train_batch_size=2", "rollout.n=2", "rollout.val_kwargs={}", "rollout.multi_turn.max_turn_tokens=8"),
        *("trainer.stop_when=null", "trainer.test_freq=0", "trainer.total_training_steps=1"),
        *("trainer.logger=[jsonl]", f"trainer.default_local_dir={folder}", f"actor.backend={NAME}"),
        *("actor.use_kl_loss=true", "ref.sync_steps=1"),
    ]
    return main(["train", "+experiment=calculator", *options, *overrides])


@pytest.mark.slow
def test_second_backend_trains_a_step_with_a_reference(task_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert train(task_folder, tmp_path) == 0
    row = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert (row["step"], row["actor/num_micro_batches"] > 0) == (1, True)
    assert {"optimizer.pt", "model.safetensors"} <= {file.name for file in (tmp_path / "checkpoints/latest").iterdir()}
    assert (tmp_path / "checkpoints/latest/reference/model.safetensors").is_file()


def test_unsupported_backend_options_are_refused(task_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    asked = ["model.lora_rank=4", "ref.param_offload=true", "actor.share_prefixes=false", "algorithm.name=gae"]
    asked += ["actor.routed_experts=true", "algorithm.rollout_correction.bypass_mode=false"]
    assert train(task_folder, tmp_path, *asked) == 2
    lines = capsys.readouterr().err.splitlines()
    for key in ("model.lora_rank", "ref.param_offload", "actor.share_prefixes", "actor.routed_experts"):
        about = [line for line in lines if f"'{key}' has no effect without" in line]
        assert ["'actor.backend=torch'" in line for line in about] == [True], lines
    assert sum("'algorithm.name=gae'" in line and "'actor.backend=torch'" in line for line in lines) == 1, lines
