from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from backend_contract import *  # noqa: F403  # the suite every backend runs
from backend_contract import MakeBackend
from tiny_models import save_model

from agentrl.backends.torch.backend import TorchBackend, load_scalar_backend, load_torch_backend
from agentrl.config.actor import ActorConfig
from agentrl.config.model import ModelConfig

pytestmark = pytest.mark.one_in(5)  # `make test-nightly` runs each test with all models

PARTS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "": ({}, {}),
    "lora": ({"lora_rank": 4, "lora_alpha": 32}, {}),
    "frozen": ({}, {"freeze_modules": ["model.embed_tokens", "*.layers.0.*"]}),
    "cuda": ({}, {"device": "cuda"}),
    "cuda_offload": ({}, {"device": "cuda", "param_offload": True, "optimizer_offload": True}),
    "cuda_lora": ({"lora_rank": 4, "lora_alpha": 32}, {"device": "cuda"}),
}
"""Which weights are trained, and on which device: changes to the model section and to the actor section."""
ON_A_GPU = ["qwen3-adamw-cuda", "qwen3-muon-cuda", "qwen3-adamw-cuda_offload", "qwen3-adamw-cuda_lora"]


@pytest.fixture(
    params=[
        *("qwen3-adamw", "qwen3-muon", "qwen3_moe-adamw", "qwen3-adamw-lora", "qwen3-adamw-frozen"),
        *(pytest.param(name, marks=pytest.mark.gpu) for name in ON_A_GPU),
    ]
)
def make_backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeBackend]:
    family, optimizer, part, *_ = [*request.param.split("-"), ""]
    model_changes, actor_changes = PARTS[part]
    path: Path = save_model(tmp_path_factory.mktemp("model"), family)
    made: list[TorchBackend] = []

    def make(trainable: bool = True, value_head: bool = False, **actor: object) -> TorchBackend:
        optim = {"name": optimizer, "lr": 1e-2, "lr_warmup_steps": 2, "lr_scheduler_type": "cosine"}
        config = ActorConfig.model_validate({"optim": optim, "device": "cpu", **actor_changes, **actor})
        model = ModelConfig.model_validate({"path": str(path), **model_changes})
        load = load_scalar_backend if value_head else load_torch_backend
        made.append(load(model, config, total_updates=10, seed=0, trainable=trainable))
        return made[-1]

    yield make
    for backend in made:
        asyncio.run(backend.close())
