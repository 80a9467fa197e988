from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from backend_contract import *  # noqa: F403  # the suite every backend runs
from backend_contract import MakeBackend
from tiny_models import save_model

from agentrl.backends.torch.backend import TorchBackend, load_torch_backend
from agentrl.config.actor import ActorConfig
from agentrl.config.model import ModelConfig


@pytest.fixture(params=["qwen3-adamw", "qwen3-muon", "qwen3_moe-adamw"])
def make_backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeBackend]:
    family, _, optimizer = request.param.partition("-")
    path: Path = save_model(tmp_path_factory.mktemp("model"), family)
    made: list[TorchBackend] = []

    def make(trainable: bool = True, **actor: object) -> TorchBackend:
        optim = {"name": optimizer, "lr": 1e-2, "lr_warmup_steps": 2, "lr_scheduler_type": "cosine"}
        config = ActorConfig.model_validate({"optim": optim, "device": "cpu", **actor})
        model = ModelConfig(path=str(path))
        made.append(load_torch_backend(model, config, total_updates=10, seed=0, trainable=trainable))
        return made[-1]

    yield make
    for backend in made:
        asyncio.run(backend.close())
