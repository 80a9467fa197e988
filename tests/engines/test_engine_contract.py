"""The contract suite on the embedded engine (normal and deterministic) and on the scripted engine."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from engine_contract import CONTRACT, Subject, check_contract
from engine_models import tiny_model
from vision_models import save_vision_model

from agentrl.config.model import ModelConfig
from agentrl.engines.scripted import ScriptedEngine
from agentrl.engines.torch.engine import TorchEngine
from agentrl.models.images import find_image_inputs, load_image_model


@cache
def vision_folder() -> ModelConfig:
    return ModelConfig(path=str(save_vision_model(Path(mkdtemp()))), dtype="float32")


def vision_engine() -> TorchEngine:
    model = load_image_model(vision_folder(), torch.device("cpu"))
    return TorchEngine(model, max_num_seqs=8, eos_token_ids=(96,), images=find_image_inputs(vision_folder()))


SUBJECTS = {
    "torch": Subject(
        lambda: TorchEngine(tiny_model("qwen3"), max_num_seqs=8),
        lambda: list(tiny_model("qwen3").named_parameters()),
        stop_token_id=96,
    ),
    "deterministic": Subject(
        lambda: TorchEngine(tiny_model("qwen3"), max_num_seqs=8, deterministic=True),
        lambda: list(tiny_model("qwen3").named_parameters()),
        stop_token_id=96,
    ),
    "without KV": Subject(
        lambda: TorchEngine(tiny_model("mamba"), max_num_seqs=8, max_sequence_length=256),
        lambda: list(tiny_model("mamba").named_parameters()),
        stop_token_id=96,
    ),
    "images": Subject(vision_engine, lambda: list(vision_engine().model.named_parameters()), stop_token_id=96),
    "scripted": Subject(lambda: ScriptedEngine(lambda request: range(2, 92), delay_s=0.01), None, stop_token_id=96),
}
ON_A_GPU = {
    name: Subject(
        lambda deterministic=deterministic: TorchEngine(
            tiny_model("qwen3"), max_num_seqs=8, deterministic=deterministic, device="cuda"
        ),
        lambda: list(tiny_model("qwen3").named_parameters()),  # published from the CPU
        stop_token_id=96,
    )
    for name, deterministic in (("cuda", False), ("cuda, deterministic", True))
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", SUBJECTS)
def test_engines_satisfy_the_contract(check, name):
    check_contract(check, SUBJECTS[name])


@pytest.mark.gpu
@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", ON_A_GPU)
def test_contract_on_a_gpu(check, name):
    check_contract(check, ON_A_GPU[name])
